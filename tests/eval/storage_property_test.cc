// Every evict stage with every pair of codecs, tails and exact sinks over rows of a real model:
// each row is stored as if it had been encoded alone (codecs that store groups of rows: with its
// group alone), whatever came and went around it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
#include "tests/eval/head_model.h"
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

class RowsOf final : public RowSource {
 public:
  RowsOf(std::span<const float> rows, int dim) : rows_(rows), dim_(dim) {}
  std::int64_t rows() const override { return std::ssize(rows_) / dim_; }
  int dim() const override { return dim_; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    std::copy_n(rows_.begin() + first * dim_, std::int64_t{count} * dim_, out);
  }

 private:
  std::span<const float> rows_;
  int dim_;
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

  // Turns rows into what the codec makes of them when they are all there is.
  static void EncodeTogether(const std::string& codec, Side side, int dim, std::span<float> rows) {
    const auto pipeline = Parse(StrCat("none | kv=", codec));
    ASSERT_TRUE(pipeline.ok()) << pipeline.message();
    const auto chain = MakeChain((*pipeline)->main_store().key, dim, side);
    ASSERT_TRUE(chain.ok()) << chain.message();
    const std::size_t bytes = (*chain)->codec().BlockBytes(kBlockRows);
    std::vector<std::uint8_t> memory(bytes + kBlockAlignment);
    void* aligned = memory.data();
    std::size_t space = memory.size();
    std::align(kBlockAlignment, bytes, aligned, space);
    const BlockRef block{static_cast<std::uint8_t*>(aligned), kBlockRows};
    std::vector<float> stats(static_cast<std::size_t>((*chain)->stats_floats()));
    const int count = static_cast<int>(std::ssize(rows) / dim);
    ASSERT_TRUE((*chain)->Learn(RowsOf(rows, dim), stats.data()).ok());
    ASSERT_TRUE((*chain)->Encode(stats.data(), rows.data(), count, block, 0).ok());
    (*chain)->Decode(stats.data(), block, 0, count, rows.data());
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
    const std::span<float> all(rows.values);
    const auto dim = static_cast<std::size_t>(rows.dim);
    for (std::size_t at = 0; at < all.size(); at += dim) {
      EncodeTogether(codec, side, rows.dim, all.subspan(at, dim));
    }
  }

  static std::map<std::string, std::vector<SideRows>>* alone_;
};

Trace* StorageProperty::trace_ = nullptr;
PromptLife* StorageProperty::life_ = nullptr;
std::map<std::string, std::vector<SideRows>>* StorageProperty::alone_ = nullptr;

bool StoresGroups(const std::string& codec) { return codec.find("channel") != codec.npos; }

struct Storage {
  std::string stage;
  std::string key;
  std::string value;
  int tail = 0;
  int sinks = 0;
  std::int64_t budget = kBudget;
  std::string select = "top_k";

  std::string Spec() const {
    const std::string_view own = stage == "mix"   ? "0.9*window_attention,0.1*key_norm,"
                                 : stage == "lag" ? "lag=16,"
                                                  : "";
    return StrCat(stage, "(", own, "budget=", budget, ",recent=4,split=adaptive,select=", select,
                  ") | k=", key, ", v=", value, " | tail=", tail, " | exact_sinks=", sinks,
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

// One side's part of a stored row, by position.
using Decoded = std::map<TokenPos, std::vector<float>>;

class StorageCheck : public StorageProperty {
 protected:
  // Follows one run; called after the prompt and after each eviction during decode.
  class Follower {
   public:
    Follower(const Storage& storage, const LayerStore& store, const LayerSpec& layer)
        : storage_(storage), store_(store), layer_(layer) {}

    void Check(const Cache& cache) {
      const std::vector<std::vector<TokenPos>> kept = KeptBy(cache);
      for (int head = 0; head < layer_.kv_heads; ++head) {
        Advance(head, kept[head], cache.next_position());
        ExpectRows(cache, head, kept[head]);
      }
      ExpectBytes(cache.Report());
      seen_ = cache.next_position();
      ++checks_;
    }
    int checks() const { return checks_; }

   private:
    void Advance(int head, std::span<const TokenPos> kept, TokenPos next_position) {
      if (checks_ == 0) {
        models_.emplace_back(storage_.tail, store_.group_rows());
        decoded_.emplace_back();
        models_.back().TakePrompt(kept,
                                  life_->positions()[static_cast<std::size_t>(storage_.sinks)]);
      } else {
        for (const TokenPos position : life_->positions()) {
          if (position >= seen_ && position < next_position) models_[head].Append(position);
        }
      }
      for (const Group& group : models_[head].TakeSealed()) {
        for (const Side side : {Side::kKey, Side::kValue}) Decode(group, head, side);
      }
      models_[head].Evict(kept);
    }

    void Decode(const Group& group, int head, Side side) {
      const std::string& codec = side == Side::kKey ? storage_.key : storage_.value;
      const Chain& chain = side == Side::kKey ? *store_.key : *store_.value;
      const auto dim = static_cast<std::size_t>(chain.dim());
      const std::size_t rows = static_cast<std::size_t>(chain.codec().group_rows());
      const SideRows& source = Alone(rows == 1 ? codec : "", side)[head];
      for (std::size_t first = 0; first < group.positions.size(); first += rows) {
        std::vector<float> values;
        for (std::size_t r = first; r < first + rows; ++r) {
          const float* row = source.row(IndexOf(group.positions[r]));
          values.insert(values.end(), row, row + dim);
        }
        if (rows > 1) EncodeTogether(codec, side, static_cast<int>(dim), values);
        for (std::size_t r = 0; r < rows; ++r) {
          const float* row = values.data() + r * dim;
          decoded_[head][side == Side::kKey ? 0 : 1][group.positions[first + r]] = {row, row + dim};
        }
      }
    }

    void ExpectRows(const Cache& cache, int head, std::span<const TokenPos> kept) {
      const std::size_t rows = kept.size();
      SideRows sides[] = {{layer_.key_dim, std::vector<float>(rows * layer_.key_dim)},
                          {layer_.value_dim, std::vector<float>(rows * layer_.value_dim)}};
      ASSERT_TRUE(cache.Gather(0, head, {}, sides[0].values, sides[1].values).ok());
      for (const Side side : {Side::kKey, Side::kValue}) {
        const int s = side == Side::kKey ? 0 : 1;
        for (std::size_t r = 0; r < rows; ++r) {
          const TokenPos position = kept[r];
          const float* expected = models_[head].IsExact(position)
                                      ? Alone("", side)[head].row(IndexOf(position))
                                      : decoded_[head][s].at(position).data();
          ASSERT_TRUE(SameBits(sides[s].row(static_cast<std::int64_t>(r)), expected, sides[s].dim))
              << "head " << head << " position " << position << " side " << s;
        }
      }
    }

    // A group's scales stay whole however few of its rows are left; those of a row codec go.
    void ExpectBytes(const ByteReport& report) const {
      constexpr std::int64_t kF16Bytes = 2;  // what the trace came in
      std::int64_t payload = 0;
      std::int64_t scales = 0;
      for (const HeadModel& model : models_) {
        payload += model.exact_rows() * kF16Bytes * (layer_.key_dim + layer_.value_dim);
        for (const Group& group : model.groups()) {
          const std::int64_t left = std::ssize(group.positions);
          for (const Chain* chain : {store_.key.get(), store_.value.get()}) {
            const std::int64_t together = chain->codec().group_rows();
            payload += left * chain->codec().row_bytes().codes;
            scales +=
                (left + together - 1) / together * together * chain->codec().row_bytes().scales;
          }
        }
      }
      EXPECT_EQ(report.payload_bytes, payload);
      EXPECT_EQ(report.scale_bytes, scales);
      // What is learnt, and positions: at most 4 bytes a row.
      const std::int64_t learnt = store_.key->stats_floats() + store_.value->stats_floats();
      EXPECT_LE(report.metadata_bytes, 4 * (layer_.kv_heads * learnt + report.rows_kept));
    }

    const Storage& storage_;
    const LayerStore& store_;
    const LayerSpec& layer_;
    std::vector<HeadModel> models_;
    std::vector<std::array<Decoded, 2>> decoded_;
    TokenPos seen_ = 0;
    int checks_ = 0;
  };

  static void Check(const Storage& storage) {
    SCOPED_TRACE(storage.Spec());
    const auto pipeline = Parse(storage.Spec());
    ASSERT_TRUE(pipeline.ok()) << pipeline.message();
    const LayerSpec& layer = trace_->layers()[0].spec;
    const auto store = BuildStore((*pipeline)->main_store(), layer);
    ASSERT_TRUE(store.ok()) << store.message();
    Follower follower(storage, *store, layer);
    const auto cache =
        life_->Run(*pipeline, 37, nullptr,
                   [&](const Cache& now, std::span<const TokenPos>) { follower.Check(now); });
    ASSERT_TRUE(cache.ok()) << cache.message();
    EXPECT_EQ(follower.checks(), 1 + trace_->n_eval() / 16);
  }

  // Groups need a tail as long as themselves and are evicted in blocks of theirs; rows enough that
  // some are sealed before an eviction and some after.
  static void CheckGroups(Storage storage, int group_rows) {
    storage.tail = std::max(storage.tail / 4 * 3, group_rows);
    storage.budget = std::max<std::int64_t>(kBudget, 2 * group_rows + 16);
    storage.select = StrCat("block:", group_rows);
    Check(storage);
  }
};

TEST_F(StorageCheck, EveryStageAndPairOfCodecsStoresRowsAsIfAlone) {
  for (const std::string& stage : Stages()) {
    for (const std::string& key : Codecs()) {
      for (const std::string& value : Codecs()) {
        for (const int tail : {0, 64}) {
          for (const int sinks : {0, 4}) {
            const Storage storage{stage, key, value, tail, sinks};
            StoresGroups(key + value) ? CheckGroups(storage, 32) : Check(storage);
          }
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
    const Storage storage{"random", chain, chain, 8, 4};
    const auto pipeline = Parse(StrCat("none | kv=", chain));
    const auto store = BuildStore((*pipeline)->main_store(), trace_->layers()[0].spec);
    const int group_rows = store->group_rows();
    group_rows > 1 ? CheckGroups(storage, group_rows) : Check(storage);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvsieve::eval
