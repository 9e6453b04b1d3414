// Every evict stage with every pair of codecs, tails and exact sinks over rows of a real model:
// each row is stored as if it had been encoded alone, whatever came and went around it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/eval/trace.h"
#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "tests/eval/prompt_life.h"
#include "tests/quant/codec_variants.h"

namespace kvsieve::eval {
namespace {

constexpr std::int64_t kRows = 112;
constexpr int kLayers = 1;
constexpr std::int64_t kBudget = 72;

Result<std::shared_ptr<const Pipeline>> Parse(const std::string& spec) {
  KVS_ASSIGN_OR_RETURN(Pipeline pipeline, Pipeline::Parse(spec));
  return std::make_shared<const Pipeline>(std::move(pipeline));
}

// Decoded rows of one side of one head, by position.
struct SideRows {
  int dim = 0;
  std::vector<float> values;
  const float* row(std::int64_t index) const { return values.data() + index * dim; }
};

bool SameBits(const float* a, const float* b, int dim) {
  return std::memcmp(a, b, static_cast<std::size_t>(dim) * sizeof(float)) == 0;
}

class OneRow final : public RowSource {
 public:
  explicit OneRow(std::span<const float> row) : row_(row) {}
  std::int64_t rows() const override { return 1; }
  int dim() const override { return static_cast<int>(row_.size()); }
  void ReadRows(RowIndex, int count, float* out) const override {
    if (count > 0) std::copy(row_.begin(), row_.end(), out);
  }

 private:
  std::span<const float> row_;
};

class StorageProperty : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto trace = Trace::Open(KVS_DATA_DIR "/smollm2-135m-small.safetensors");
    ASSERT_TRUE(trace.ok()) << trace.message();
    trace_ = new Trace(*std::move(trace));
    life_ = new PromptLife(*trace_, kRows, kLayers);
    alone_ = new std::map<std::string, std::vector<SideRows>>;
  }
  static void TearDownTestSuite() {
    delete alone_;
    delete life_;
    delete trace_;
    alone_ = nullptr;
    life_ = nullptr;
    trace_ = nullptr;
  }

  // What the codec makes of each row when it is the only one, [heads]; "" = the rows as recorded.
  // Encoded straight through the chain, without a cache.
  static const std::vector<SideRows>& Alone(const std::string& codec, Side side) {
    auto [found, is_new] = alone_->try_emplace(StrCat(side == Side::kKey ? "k" : "v", codec));
    if (!is_new) return found->second;
    const TraceLayer& layer = trace_->layers()[0];
    const bool keys = side == Side::kKey;
    for (int head = 0; head < layer.spec.kv_heads; ++head) {
      SideRows rows{keys ? layer.spec.key_dim : layer.spec.value_dim, {}};
      AddRows(keys ? layer.keys : layer.values, head, trace_->tokens() - kRows, rows);
      AddRows(keys ? layer.eval_keys : layer.eval_values, head, 0, rows);
      if (!codec.empty()) EncodeEach(codec, side, rows);
      found->second.push_back(std::move(rows));
    }
    return found->second;
  }

  static std::int64_t IndexOf(TokenPos position) {
    const auto all = life_->positions();
    return std::lower_bound(all.begin(), all.end(), position) - all.begin();
  }

  static Trace* trace_;
  static PromptLife* life_;

 private:
  static void AddRows(const HeadsView& view, int head, std::int64_t first, SideRows& rows) {
    for (std::int64_t row = first; row < view.rows; ++row) {
      const auto* elements = static_cast<const F16*>(view.row(head, row));
      ASSERT_EQ(view.type, ElementType::kF16);
      for (int d = 0; d < view.dim; ++d) rows.values.push_back(ToFloat(elements[d]));
    }
  }

  static void EncodeEach(const std::string& codec, Side side, SideRows& rows) {
    const auto pipeline = Parse(StrCat("none | kv=", codec));
    ASSERT_TRUE(pipeline.ok()) << pipeline.message();
    const auto chain = MakeChain((*pipeline)->main_store().key, rows.dim, side);
    ASSERT_TRUE(chain.ok()) << chain.message();
    constexpr int kCapacity = 16;
    const std::size_t bytes = (*chain)->codec().BlockBytes(kCapacity);
    std::vector<std::uint8_t> memory(bytes + kBlockAlignment);
    void* aligned = memory.data();
    std::size_t space = memory.size();
    std::align(kBlockAlignment, bytes, aligned, space);
    const BlockRef block{static_cast<std::uint8_t*>(aligned), kCapacity};
    std::vector<float> row(static_cast<std::size_t>(rows.dim));
    std::vector<float> stats(static_cast<std::size_t>((*chain)->stats_floats()));
    for (auto at = rows.values.begin(); at != rows.values.end(); at += rows.dim) {
      std::copy_n(at, rows.dim, row.begin());
      std::memset(block.data, 0, bytes);
      ASSERT_TRUE((*chain)->Learn(OneRow(row), stats.data()).ok());
      ASSERT_TRUE((*chain)->Encode(stats.data(), row.data(), 1, block, 0).ok());
      (*chain)->Decode(stats.data(), block, 0, 1, &*at);
    }
  }

  static std::map<std::string, std::vector<SideRows>>* alone_;
};

Trace* StorageProperty::trace_ = nullptr;
PromptLife* StorageProperty::life_ = nullptr;
std::map<std::string, std::vector<SideRows>>* StorageProperty::alone_ = nullptr;

struct Storage {
  std::string stage;
  std::string key;
  std::string value;
  int tail = 0;
  int sinks = 0;

  std::string Spec() const {
    const std::string_view own = stage == "mix"   ? "0.9*window_attention,0.1*key_norm,"
                                 : stage == "lag" ? "lag=16,"
                                                  : "";
    return StrCat(stage, "(", own, "budget=", kBudget, ",recent=4,split=adaptive) | k=", key,
                  ", v=", value, " | tail=", tail, " | exact_sinks=", sinks,
                  " | schedule=every(16)");
  }
};

std::vector<std::string> Stages() {
  std::vector<std::string> stages;
  for (const StageInfo& info : EvictorInfos()) stages.emplace_back(info.name);
  return stages;
}

std::vector<std::string> Codecs() {
  std::vector<std::string> codecs;
  for (const StageInfo& info : CodecInfos()) codecs.emplace_back(info.name);
  return codecs;
}

// Exact rows of a head, after the prompt: its first tokens, if they stayed, and the last rows.
std::int64_t ExactRows(const Storage& storage, std::span<const TokenPos> kept, TokenPos sinks_end) {
  const auto sinks = std::lower_bound(kept.begin(), kept.end(), sinks_end) - kept.begin();
  const auto rows = static_cast<std::int64_t>(kept.size());
  return sinks + std::min<std::int64_t>(storage.tail, rows - sinks);
}

class StorageCheck : public StorageProperty {
 protected:
  // After the prompt and after each eviction during decode.
  static void ExpectAsAlone(const Storage& storage, const Cache& cache) {
    const TokenPos sinks_end = life_->positions()[static_cast<std::size_t>(storage.sinks)];
    const bool after_prompt = cache.next_position() == life_->Positions(kRows - 1, 1)[0] + 1;
    for (int head = 0; head < cache.layer(0).kv_heads; ++head) {
      const auto rows = static_cast<std::size_t>(cache.rows(0, head));
      std::vector<TokenPos> positions(rows);
      SideRows keys{cache.layer(0).key_dim, std::vector<float>(rows * cache.layer(0).key_dim)};
      SideRows values{cache.layer(0).value_dim,
                      std::vector<float>(rows * cache.layer(0).value_dim)};
      ASSERT_TRUE(cache.Gather(0, head, positions, keys.values, values.values).ok());
      for (std::size_t r = 0; r < rows; ++r) {
        const bool sink = positions[r] < sinks_end;
        const bool in_tail = r + static_cast<std::size_t>(storage.tail) >= rows;
        const auto as = [&](const std::string& key, const std::string& value) {
          const std::int64_t index = IndexOf(positions[r]);
          const auto row = static_cast<std::int64_t>(r);
          return SameBits(keys.row(row), Alone(key, Side::kKey)[head].row(index), keys.dim) &&
                 SameBits(values.row(row), Alone(value, Side::kValue)[head].row(index), values.dim);
        };
        // A tail that lost rows to an eviction is filled by those that come, not from codes.
        const bool exact = as("", "");
        const bool encoded = as(storage.key, storage.value);
        EXPECT_TRUE(sink || (in_tail && after_prompt) ? exact
                    : in_tail                         ? exact || encoded
                                                      : encoded)
            << "head " << head << " position " << positions[r];
      }
    }
  }

  static void ExpectBytes(const Storage& storage, const Cache& cache) {
    const LayerSpec& layer = cache.layer(0);
    const auto pipeline = Parse(storage.Spec());
    const auto store = BuildStore((*pipeline)->main_store(), layer);
    ASSERT_TRUE(store.ok()) << store.message();
    const RowBytes key = store->key->codec().row_bytes();
    const RowBytes value = store->value->codec().row_bytes();
    const TokenPos sinks_end = life_->positions()[static_cast<std::size_t>(storage.sinks)];
    std::int64_t exact = 0;
    std::int64_t encoded = 0;
    for (const std::vector<TokenPos>& kept : KeptBy(cache)) {
      const std::int64_t of_head = ExactRows(storage, kept, sinks_end);
      exact += of_head;
      encoded += static_cast<std::int64_t>(kept.size()) - of_head;
    }
    constexpr std::int64_t kF16Bytes = 2;  // what the trace came in
    const ByteReport report = cache.Report();
    EXPECT_EQ(report.payload_bytes, encoded * (key.codes + value.codes) +
                                        exact * kF16Bytes * (layer.key_dim + layer.value_dim));
    EXPECT_EQ(report.scale_bytes, encoded * (key.scales + value.scales));
    // What is learnt, and positions: at most 4 bytes a row.
    const std::int64_t learnt = store->key->stats_floats() + store->value->stats_floats();
    EXPECT_LE(report.metadata_bytes, 4 * (layer.kv_heads * learnt + report.rows_kept));
  }

  static void Check(const Storage& storage) {
    SCOPED_TRACE(storage.Spec());
    const auto pipeline = Parse(storage.Spec());
    ASSERT_TRUE(pipeline.ok()) << pipeline.message();
    int evictions = 0;
    const auto check = [&](const Cache& cache, std::span<const TokenPos>) {
      if (evictions++ == 0) ExpectBytes(storage, cache);
      ExpectAsAlone(storage, cache);
    };
    const auto cache = life_->Run(*pipeline, 37, nullptr, check);
    ASSERT_TRUE(cache.ok()) << cache.message();
    EXPECT_EQ(evictions, 1 + trace_->n_eval() / 16);
  }
};

TEST_F(StorageCheck, EveryStageAndPairOfCodecsStoresRowsAsIfAlone) {
  for (const std::string& stage : Stages()) {
    for (const std::string& key : Codecs()) {
      for (const std::string& value : Codecs()) {
        for (const int tail : {0, 64}) {
          for (const int sinks : {0, 4}) Check({stage, key, value, tail, sinks});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(StorageCheck, EveryVariantOfACodecDoesToo) {
  const int dim = trace_->layers()[0].spec.key_dim;
  std::vector<std::string> chains = quant_test::EveryCodec(dim);
  for (const std::string& codec : Codecs()) {
    if (codec != "turbo") chains.push_back("hadamard+" + codec);
  }
  for (const std::string& chain : chains) {
    Check({"random", chain, chain, 8, 4});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvsieve::eval
