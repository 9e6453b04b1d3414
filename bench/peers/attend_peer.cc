// kvsieve and ggml take turns at one decode step of attention, in one process and one thread; see
// bench/peers/attend_ggml.py, which runs this and makes the tables.
//
//   attend_peer peers ROWS ROUNDS    kvsieve's stores and ggml's types in both layouts
//   attend_peer keep ROWS ROUNDS     kvsieve's stores after random eviction to several rates
//   attend_peer encode ROWS ROUNDS   rows from f32, without attention
//
// A fourth argument names the instruction set of kvsieve's side (AVX2); ggml's is that of the
// build.
//
// Every output is first held against exact attention over the same rows decoded; one that is
// further off than rounding explains ends the program. Lines on stdout, fields separated by tabs:
//   check NAME ERROR TOLERANCE CODES    the worst query head, relative; and what encoding lost:
//                                       root mean square, relative to the f16 rows
//   target NAME                         the instruction set of kvsieve's kernels
//   time NAME BYTES READ_MS STEP_MS     one round: a pure read of the stored bytes, and the step
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "bench/peers/contender.h"
#include "kvsieve/float16.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/targets.h"

namespace kvsieve::bench {
namespace {

constexpr const char* kStores[] = {"kv=f16", "kv=int8", "kv=int4(group=32)", "kv=int4(group=row)",
                                   "kv=turbo4"};
// Attention alone. q8_0 and q4_0 are kvsieve's own, the same bytes as ggml's.
constexpr const char* kMoreStores[] = {"kv=q8_0", "kv=q4_0",   "kv=bf16", "kv=fp8",
                                       "kv=int3", "kv=turbo3", "kv=int2", "kv=turbo2"};

struct Entry {
  std::string name;
  std::unique_ptr<Contender> contender;
};

std::vector<Entry> Peers(const LayerData& data) {
  std::vector<Entry> entries;
  for (const char* store : kStores) entries.push_back({store, MakeKvsieve(store, data)});
  for (const char* store : kMoreStores) entries.push_back({store, MakeKvsieve(store, data)});
  const std::pair<const char*, GgmlType> types[] = {
      {"f16", GgmlType::kF16}, {"q8_0", GgmlType::kQ8}, {"q4_0", GgmlType::kQ4}};
  for (const auto& [name, type] : types) {
    entries.push_back({std::string("ggml ") + name + " head-major",
                       MakeGgml(type, GgmlLayout::kHeadMajor, data)});
    entries.push_back({std::string("ggml ") + name + " token-major",
                       MakeGgml(type, GgmlLayout::kTokenMajor, data)});
  }
  return entries;
}

std::vector<Entry> KeepRates(const LayerData& data) {
  std::vector<Entry> entries;
  for (const char* store : kStores) {
    entries.push_back({store, MakeKvsieve(store, data)});
    for (const char* rate : {"50%", "25%", "10%", "3%"}) {
      const std::string spec = std::string("random(budget=") + rate + ") | " + store;
      entries.push_back({spec, MakeKvsieve(spec, data)});
    }
  }
  return entries;
}

// Root mean square of what encoding changed, relative to the rows; 0 where rows were evicted.
double CodesError(const HeadRows& decoded, const LayerData& data, int kv_head) {
  if (decoded.rows() != data.rows()) return 0;
  double error = 0;
  double square = 0;
  const std::size_t first = static_cast<std::size_t>(kv_head) * decoded.keys.size();
  for (std::size_t i = 0; i < decoded.keys.size(); ++i) {
    const double key = ToFloat(data.keys()[first + i]);
    const double value = ToFloat(data.values()[first + i]);
    error += std::pow(decoded.keys[i] - key, 2) + std::pow(decoded.values[i] - value, 2);
    square += key * key + value * value;
  }
  return std::sqrt(error / square);
}

// Codes may lose half: 2 bits lose 0.4 of normal numbers, and 1.4 would mean that other rows were
// stored.
void Check(const Entry& entry, const LayerData& data) {
  std::vector<float> out(kQueryHeads * kDim);
  entry.contender->Step(out.data());
  Deviation worst{0, 1};
  double codes = 0;
  for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
    const HeadRows rows = entry.contender->Decode(kv_head);
    codes = std::max(codes, CodesError(rows, data, kv_head));
    for (int head = kv_head * kGroup; head < (kv_head + 1) * kGroup; ++head) {
      const Deviation found = Deviate(rows, data.queries().data() + head * kDim,
                                      entry.contender->rounding(), out.data() + head * kDim);
      if (!(found.error <= found.tolerance)) {
        Fail(entry.name + ": query head " + std::to_string(head) + " is off by " +
             std::to_string(found.error) + ", rounding explains " +
             std::to_string(found.tolerance));
      }
      if (found.error * worst.tolerance > worst.error * found.tolerance) worst = found;
    }
  }
  if (!(codes <= 0.5)) Fail(entry.name + ": encoding lost " + std::to_string(codes));
  std::printf("check\t%s\t%.3g\t%.3g\t%.3g\n", entry.name.c_str(), worst.error, worst.tolerance,
              codes);
}

double Milliseconds(const std::function<void()>& work) {
  const double begin = ThreadSeconds();
  work();
  return (ThreadSeconds() - begin) * 1e3;
}

void PrintTime(const std::string& name, std::size_t bytes, double read, double step) {
  std::printf("time\t%s\t%zu\t%.6f\t%.6f\n", name.c_str(), bytes, read, step);
}

// All steps, then all reads: each starts with a cache that holds the others' rows.
void Measure(const std::vector<Entry>& entries, int rounds) {
  std::vector<float> out(kQueryHeads * kDim);
  std::vector<double> steps(entries.size());
  volatile std::uint64_t sink = 0;  // so that reads happen
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      steps[i] = Milliseconds([&] { entries[i].contender->Step(out.data()); });
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const double read = Milliseconds([&] { sink = sink + entries[i].contender->Read(); });
      PrintTime(entries[i].name, entries[i].contender->bytes(), read, steps[i]);
    }
    std::fflush(stdout);
  }
}

struct NamedEncoder {
  std::string name;
  std::unique_ptr<RowEncoder> encoder;
};

std::vector<NamedEncoder> Encoders() {
  std::vector<NamedEncoder> encoders;
  for (const char* store : kStores) {
    encoders.push_back({store + std::string(" K"), MakeKvsieveEncoder(store, Side::kKey)});
    encoders.push_back({store + std::string(" V"), MakeKvsieveEncoder(store, Side::kValue)});
  }
  encoders.push_back({"ggml f16", MakeGgmlEncoder(GgmlType::kF16)});
  encoders.push_back({"ggml q8_0", MakeGgmlEncoder(GgmlType::kQ8)});
  encoders.push_back({"ggml q4_0", MakeGgmlEncoder(GgmlType::kQ4)});
  return encoders;
}

void MeasureEncoding(std::int64_t rows, int rounds) {
  const auto floats = rows * kDim;
  HugeBuffer memory(static_cast<std::size_t>(floats) * sizeof(float));
  auto* source = reinterpret_cast<float*>(memory.data());
  const LayerData data((rows + kKvHeads - 1) / kKvHeads);
  ConvertToF32(data.keys(), ElementType::kF16, floats, source);
  const std::vector<NamedEncoder> encoders = Encoders();
  volatile std::uint64_t sink = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const NamedEncoder& entry : encoders) {
      const double read = Milliseconds([&] { sink = sink + PureRead(source, memory.bytes()); });
      const double time = Milliseconds([&] {
        for (std::int64_t r = 0; r < rows; r += kBlockRows) {
          entry.encoder->Encode(source + r * kDim,
                                static_cast<int>(std::min<std::int64_t>(kBlockRows, rows - r)));
        }
      });
      PrintTime(entry.name, memory.bytes(), read, time);
    }
  }
}

void Run(std::string_view mode, std::int64_t rows, int rounds) {
  std::printf("target\t%s\n", std::string(ActiveTarget()).c_str());
  if (mode == "encode") return MeasureEncoding(rows, rounds);
  const LayerData data(rows);
  const std::vector<Entry> entries = mode == "peers" ? Peers(data) : KeepRates(data);
  for (const Entry& entry : entries) Check(entry, data);
  std::fflush(stdout);
  Measure(entries, rounds);
}

}  // namespace
}  // namespace kvsieve::bench

int main(int argc, char** argv) {
  using kvsieve::bench::Fail;
  const std::string_view mode = argc == 4 || argc == 5 ? argv[1] : "";
  if (mode != "peers" && mode != "keep" && mode != "encode") {
    Fail("usage: attend_peer peers|keep|encode ROWS ROUNDS [TARGET]");
  }
  const auto rows = kvsieve::ParseInt(argv[2]);
  const auto rounds = kvsieve::ParseInt(argv[3]);
  if (!rows.ok() || *rows < 64 || *rows > (1 << 20)) Fail("ROWS is a number from 64 to 1048576");
  if (!rounds.ok() || *rounds < 1 || *rounds > 10000) Fail("ROUNDS is a number from 1 to 10000");
  if (const auto chosen = kvsieve::SelectTarget(argc == 5 ? argv[4] : ""); !chosen.ok()) {
    Fail(chosen.message());
  }
  kvsieve::bench::Run(mode, *rows, static_cast<int>(*rounds));
}
