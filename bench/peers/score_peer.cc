// The kvsieve side of bench/peers/score_torch.py: SnapKV scoring and selection of one layer, on
// demand, so that two programs can take turns on one core.
//
//   score_peer FILE f16|bf16 ROWS SPEC
//
// FILE holds queries f32 [32, 32, 128] (query heads, window, dim), then keys [8, ROWS, 128] (KV
// heads) of the named type. Commands come line by line, each answered on stdout:
//   run    scores and selects; "CPU_NS SCRATCH_BYTES", the CPU time of this thread
//   kept   the kept positions of the last run, one line per KV head
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/float16.h"
#include "kvsieve/pipeline.h"

namespace kvsieve {
namespace {

constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kDim = 128;
constexpr int kWindow = 32;

[[noreturn]] void Fail(std::string_view what) {
  std::cerr << "score_peer: " << what << '\n';
  std::exit(2);
}

// Row-major rows of one head, two bytes an element.
class HalfRows final : public RowSource {
 public:
  HalfRows(const std::uint16_t* data, ElementType type, std::int64_t rows)
      : data_(data), type_(type), rows_(rows) {}
  std::int64_t rows() const override { return rows_; }
  int dim() const override { return kDim; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    ConvertToF32(data_ + first * kDim, type_, std::int64_t{count} * kDim, out);
  }
  std::optional<RowMajor> TryView() const override { return RowMajor{data_, type_, kDim}; }

 private:
  const std::uint16_t* data_;
  ElementType type_;
  std::int64_t rows_;
};

class Peer {
 public:
  Peer(const char* file, ElementType type, std::int64_t rows)
      : queries_(std::size_t{kQueryHeads} * kWindow * kDim),
        keys_(static_cast<std::size_t>(kKvHeads * rows * kDim)),
        positions_(static_cast<std::size_t>(rows)) {
    std::ifstream in(file, std::ios::binary);
    Read(in, &queries_);
    Read(in, &keys_);
    if (!in || in.peek() != std::ifstream::traits_type::eof()) Fail("FILE is not of that shape");
    std::iota(positions_.begin(), positions_.end(), 0);
    for (int h = 0; h < kKvHeads; ++h) {
      sources_.emplace_back(keys_.data() + h * rows * kDim, type, rows);
    }
    for (const HalfRows& source : sources_) heads_.push_back({&source, &source, positions_});
    observation_.layer.query_heads = kQueryHeads;
    observation_.layer.kv_heads = kKvHeads;
    observation_.layer.key_dim = kDim;
    observation_.layer.value_dim = kDim;
    observation_.layer.scale = 1.0F / std::sqrt(static_cast<float>(kDim));
    observation_.heads = heads_;
    observation_.window_queries = queries_.data();
    observation_.window_positions = std::span(positions_).last(kWindow);
  }

  void Run(const Evictor& evictor) {
    SerialParallel serial;
    ScoreScratch scratch;
    timespec begin{};
    timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    auto decisions = evictor.Decide({&observation_, 1}, serial, &scratch);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    if (!decisions.ok()) Fail(decisions.message());
    decision_ = std::move(decisions->front());
    const std::int64_t nanoseconds =
        (end.tv_sec - begin.tv_sec) * std::int64_t{1'000'000'000} + (end.tv_nsec - begin.tv_nsec);
    std::cout << nanoseconds << ' ' << scratch.peak_bytes << std::endl;
  }

  void PrintKept() const {
    for (int h = 0; h < kKvHeads; ++h) {
      for (const TokenPos position : decision_.keep.positions(h)) std::cout << position << ' ';
      std::cout << std::endl;
    }
  }

 private:
  template <class T>
  static void Read(std::ifstream& in, std::vector<T>* values) {
    in.read(reinterpret_cast<char*>(values->data()),
            static_cast<std::streamsize>(values->size() * sizeof(T)));
  }

  std::vector<float> queries_;
  std::vector<std::uint16_t> keys_;
  std::vector<TokenPos> positions_;
  std::vector<HalfRows> sources_;
  std::vector<HeadObservation> heads_;
  Observation observation_;
  LayerDecision decision_;
};

void Serve(int argc, char** argv) {
  if (argc != 5) Fail("usage: score_peer FILE f16|bf16 ROWS SPEC");
  const std::string_view type = argv[2];
  if (type != "f16" && type != "bf16") Fail("the type is f16 or bf16");
  const auto rows = ParseInt(argv[3]);
  if (!rows.ok() || *rows < kWindow || *rows > (1 << 24)) Fail("ROWS is a number from 32 on");
  const auto pipeline = Pipeline::Parse(argv[4]);
  if (!pipeline.ok()) Fail(pipeline.message());
  if (pipeline->evictor() == nullptr) Fail("SPEC has no evict stage");
  Peer peer(argv[1], type == "f16" ? ElementType::kF16 : ElementType::kBF16, *rows);
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "run") {
      peer.Run(*pipeline->evictor());
    } else if (line == "kept") {
      peer.PrintKept();
    } else {
      Fail("unknown command " + line);
    }
  }
}

}  // namespace
}  // namespace kvsieve

int main(int argc, char** argv) { kvsieve::Serve(argc, argv); }
