// What the gates on decode times compare: a finished cache of one layer and its decode step.
#ifndef KVSIEVE_BENCH_TIMED_DECODE_H_
#define KVSIEVE_BENCH_TIMED_DECODE_H_

#include <cstddef>
#include <string>

#include "bench/layer_cache.h"
#include "bench/measure.h"
#include "kvsieve/cache.h"

namespace kvsieve::bench {

class TimedDecode {
 public:
  // Ends the program when the step's result is wrong.
  TimedDecode(const std::string& spec, const Prompt& prompt)
      : cache_(Finished(spec, prompt, allocator_)), step_(cache_, prompt.rows()) {}

  double Seconds() {
    const double begin = ThreadSeconds();
    step_.Run();
    return ThreadSeconds() - begin;
  }
  LayerReport Report() const { return cache_.ReportLayer(0); }
  // Both sides, in every tier.
  bool fused() const {
    const LayerReport report = Report();
    return report.key_path == "fused" && report.value_path == "fused";
  }
  std::size_t bytes() const { return allocator_.bytes(); }

 private:
  static Cache Finished(const std::string& spec, const Prompt& prompt, Allocator& allocator) {
    Cache cache = StagedCache(spec, prompt, allocator);
    Check(cache.FinishPrefill());
    return cache;
  }

  RecordingAllocator allocator_;
  Cache cache_;
  DecodeStep step_;
};

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_TIMED_DECODE_H_
