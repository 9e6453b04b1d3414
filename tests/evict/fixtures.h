// Inputs for eviction tests: layers of random rows, sources that hold them in any type and stride,
// and spec calls without the pipeline's parser (evict is tested alone).
#ifndef KVSIEVE_TESTS_EVICT_FIXTURES_H_
#define KVSIEVE_TESTS_EVICT_FIXTURES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/float16.h"
#include "tests/evict/oracle.h"

namespace kvsieve::testing {

// "name(key=value,key=name(args))", columns from 1.
SpecCall ParseCall(std::string_view text);

// The evictor of `spec`, or a test failure and null.
std::shared_ptr<const Evictor> MustMake(std::string_view spec);
// The canonical form of what it makes.
std::string Canonical(std::string_view spec);

// The error of `spec`.
Error ErrorOf(std::string_view spec);

// How a source holds its rows.
struct Storage {
  ElementType type = ElementType::kF32;
  int pad = 0;       // elements between rows
  bool view = true;  // false: only ReadRows
};

// Rows of one head, converted (rounded) to the type.
class TestSource final : public RowSource {
 public:
  TestSource(const float* rows, std::int64_t count, int dim, const Storage& storage);
  std::int64_t rows() const override { return count_; }
  int dim() const override { return dim_; }
  void ReadRows(RowIndex first, int count, float* out) const override;
  std::optional<RowMajor> TryView() const override;

 private:
  std::int64_t count_;
  int dim_;
  Storage storage_;
  std::vector<std::uint8_t> bytes_;
  std::int64_t stride() const { return dim_ + storage_.pad; }
  // One element in front: rows are aligned to elements, not to vectors.
  std::size_t ByteOf(RowIndex r) const {
    return static_cast<std::size_t>(r * stride() + 1) * ElementBytes(storage_.type);
  }
};

// An Observation of a layer, with what it points to.
class Observed {
 public:
  explicit Observed(const oracle::Layer& layer, const Storage& storage = {});
  Observation observation() const;

  std::vector<TokenPos> window_positions;

 private:
  oracle::Layer layer_;
  std::vector<std::unique_ptr<TestSource>> sources_;
  std::vector<HeadObservation> heads_;
};

struct LayerShape {
  int query_heads = 4;
  int kv_heads = 2;
  int key_dim = 64;
  int value_dim = 64;
  std::int64_t rows = 256;
  int window_rows = 64;
};

// Unit-variance rows; every query leans toward a few rows, so that attention has peaks.
oracle::Layer RandomLayer(const LayerShape& shape, std::uint64_t seed);

// n threads that take tasks in an unknown order.
class ThreadedParallel final : public Parallel {
 public:
  explicit ThreadedParallel(int workers) : workers_(workers) {}
  int workers() const override { return workers_; }
  void Run(std::int64_t tasks, TaskFn fn, void* context) override {
    std::atomic<std::int64_t> next{0};
    std::vector<std::thread> threads;
    for (int worker = 0; worker < workers_; ++worker) {
      threads.emplace_back([&, worker] {
        for (std::int64_t task; (task = next++) < tasks;) fn(context, task, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int workers_;
};

// One layer's decision, serial; a test failure when there is an error.
LayerDecision Decide(std::string_view spec, const Observation& observation);

std::vector<TokenPos> Kept(const LayerDecision& decision, int head);

}  // namespace kvsieve::testing

#endif  // KVSIEVE_TESTS_EVICT_FIXTURES_H_
