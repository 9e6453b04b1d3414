// The kvsieve side of bench/peers/gather_torch.py: the rows of one layer that stay, out of staging
// into blocks, as FinishPrefill moves them once it has decided.
//
//   gather_peer FILE ROWS SPEC
//
// FILE holds keys, then values, f16 [8, ROWS, 128] (KV heads). Commands come line by line, each
// answered by one line on stdout:
//   keep FILE     takes row numbers, i64 [8, n], increasing; "n"
//   run           moves these rows; "CPU_NS", the CPU time of this thread
//   decode FILE   writes the rows of the last run, f32: keys [8, n, 128], then values; "n"
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/spec_args.h"
#include "lib/staging.h"
#include "lib/tier.h"

namespace kvsieve {
namespace {

constexpr int kKvHeads = 8;
constexpr int kDim = 128;

[[noreturn]] void Fail(std::string_view what) {
  std::cerr << "gather_peer: " << what << '\n';
  std::exit(2);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.message());
}

LayerSpec Layer() {
  LayerSpec layer;
  layer.query_heads = layer.kv_heads = kKvHeads;
  layer.key_dim = layer.value_dim = kDim;
  layer.scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  return layer;
}

template <class T>
void Read(std::ifstream& in, std::vector<T>* values) {
  in.read(reinterpret_cast<char*>(values->data()),
          static_cast<std::streamsize>(values->size() * sizeof(T)));
}

class Peer {
 public:
  Peer(const char* file, std::int64_t rows, const Pipeline& pipeline) {
    auto store = BuildStore(pipeline.main_store(), Layer());
    if (!store.ok()) Fail(store.message());
    store_ = *std::move(store);
    shape_.key_type = shape_.value_type = ElementType::kF16;
    shape_.key_dim = shape_.value_dim = kDim;
    std::vector<F16> keys(static_cast<std::size_t>(kKvHeads * rows * kDim));
    std::vector<F16> values(keys.size());
    std::ifstream in(file, std::ios::binary);
    Read(in, &keys);
    Read(in, &values);
    if (!in || in.peek() != std::ifstream::traits_type::eof()) Fail("FILE is not of that shape");
    std::vector<TokenPos> positions(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    const auto view = [&](const std::vector<F16>& data) {
      return HeadsView::HeadMajor(data.data(), kKvHeads, rows, kDim);
    };
    std::int64_t zeroed = 0;
    Check(staging_.Append(DefaultAllocator(), shape_, view(keys), view(values), positions,
                          NonFinitePolicy::kError, &zeroed));
  }

  void Keep(const std::string& file) {
    std::ifstream in(file, std::ios::binary | std::ios::ate);
    const auto count = static_cast<std::size_t>(in.tellg()) / sizeof(RowIndex) / kKvHeads;
    in.seekg(0);
    kept_.assign(kKvHeads, std::vector<RowIndex>(count));
    for (std::vector<RowIndex>& head : kept_) Read(in, &head);
    if (!in) Fail("cannot read " + file);
    std::cout << count << std::endl;
  }

  void Run() {
    tiers_.clear();
    const double begin = bench::ThreadSeconds();
    for (int head = 0; head < kKvHeads; ++head) {
      const StagedRows all_keys(staging_, shape_, Side::kKey, head);
      const StagedRows all_values(staging_, shape_, Side::kValue, head);
      const ChosenRows keys(all_keys, kept_[head]);
      const ChosenRows values(all_values, kept_[head]);
      const std::vector<TokenPos> positions(kept_[head].begin(), kept_[head].end());
      Tier& tier = tiers_.emplace_back(store_);
      Check(tier.ReserveStats(DefaultAllocator()));
      Check(tier.Learn(Side::kKey, keys, keys));
      Check(tier.Learn(Side::kValue, values, values));
      Check(tier.Reserve(DefaultAllocator(), positions));
      tier.Fill(keys, values, positions, scratch_.data());
    }
    std::cout << std::llround((bench::ThreadSeconds() - begin) * 1e9) << std::endl;
  }

  void Decode(const std::string& file) const {
    std::ofstream out(file, std::ios::binary);
    std::vector<float> row(kDim);
    for (const Side side : {Side::kKey, Side::kValue}) {
      for (const Tier& tier : tiers_) {
        for (RowIndex r = 0; r < tier.rows(); ++r) {
          tier.ReadRows(side, r, 1, row.data());
          out.write(reinterpret_cast<const char*>(row.data()), kDim * sizeof(float));
        }
      }
    }
    std::cout << tiers_.front().rows() << std::endl;
  }

 private:
  LayerStore store_;
  RowShape shape_;
  Staging staging_;
  std::vector<std::vector<RowIndex>> kept_;
  std::vector<Tier> tiers_;
  std::vector<float> scratch_ = std::vector<float>(std::size_t{kBlockRows} * kDim);
};

void Serve(int argc, char** argv) {
  if (argc != 4) Fail("usage: gather_peer FILE ROWS SPEC");
  const auto rows = ParseInt(argv[2]);
  if (!rows.ok() || *rows < 1 || *rows > (1 << 24)) Fail("ROWS is a number from 1 on");
  const auto pipeline = Pipeline::Parse(argv[3]);
  if (!pipeline.ok()) Fail(pipeline.message());
  Peer peer(argv[1], *rows, *pipeline);
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "run") {
      peer.Run();
    } else if (line.starts_with("keep ")) {
      peer.Keep(line.substr(5));
    } else if (line.starts_with("decode ")) {
      peer.Decode(line.substr(7));
    } else {
      Fail("unknown command " + line);
    }
  }
}

}  // namespace
}  // namespace kvsieve

int main(int argc, char** argv) { kvsieve::Serve(argc, argv); }
