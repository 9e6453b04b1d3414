// Any bytes as the life of a batch: which pipeline, then calls of every kind in any order, wrong
// ones and refused memory among them, held against plain vectors after each.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvsieve/byte_stream.h"
#include "tests/fuzz/life_batch.h"

namespace kvsieve::fuzz {
namespace {

class Life : private LifeBatch {
 public:
  explicit Life(std::span<const std::uint8_t> bytes)
      : LifeBatch(bytes[0], bytes[1]), bytes_(bytes.subspan(2)) {}

  void Run() {
    while (at_ < bytes_.size()) {
      Step();
      models_[current_].Verify(cache());
      ExpectCounted();
    }
    for (int i = 0; i < set_->size(); ++i) models_[static_cast<std::size_t>(i)].Verify((*set_)[i]);
  }

 private:
  std::uint8_t Next() { return at_ < bytes_.size() ? bytes_[at_++] : 0; }

  void Step() {
    const std::uint8_t op = Next();
    const std::uint8_t argument = Next();
    // One of eight calls meets an allocator that refuses its n-th request.
    faulty_ = op >= 224;
    const int refused = faulty_ ? Next() % 24 : -1;
    const std::vector<std::byte> before = faulty_ ? SavedBytes() : std::vector<std::byte>();
    const std::size_t members = models_.size();
    changed_ = false;
    allocator_.fail_at = refused;
    Call(op % 22, argument);
    allocator_.fail_at = -1;
    if (faulty_ && !changed_ && models_.size() == members && !before.empty()) {
      KVS_REQUIRE(SavedBytes() == before);
    }
    faulty_ = false;
  }

  void Call(int op, int argument) {
    switch (op) {
      case 0:
      case 1:
      case 2:
        return AppendAll(1 + argument % 40, argument / 40);
      case 3:
        return AppendAll(1, argument % 4 == 0 ? argument / 4 : 0);
      case 4:
        return AppendOne(argument % 3, 1 + argument / 3 % 9);
      case 5:
        return Finish();
      case 6:
        return Evict(argument % 3);
      case 7:
      case 8:
        return Attend(argument);
      case 9:
        return OpenAll(1 + argument % 24);
      case 10:
        return (void)Open(argument % 3, 1 + argument / 3 % 7);
      case 11:
        return Accept(argument % 26 - 1);
      case 12:
        return Rollback(argument % 26 - 1);
      case 13:
        return Reserve(argument);
      case 14:
        return Trim(argument, kvsieve::Trim::kExact);
      case 15:
        return Trim(argument, kvsieve::Trim::kAllowInexact);
      case 16:
        return Fork();
      case 17:
        return Remove(argument);
      case 18:
        return SaveAndAdd();
      case 19:
        return SaveAndLoad(argument);
      case 20:
        return Mistake(argument);
      default:
        return argument < 24 ? Clear() : Switch(argument);
    }
  }

  // -- rows -------------------------------------------------------------------------------------

  // Rows, their queries, and what is due. Returns whether the rows are there.
  bool Append(int layer, std::int64_t count, int gap) {
    LayerModel& of_layer = model().layers[layer];
    const std::vector<Token> tokens = NextTokens(layer, count, gap);
    if (tokens.back().position >= kMostTokens) return false;
    const Phase phase = model().finished ? Phase::kDecode : Phase::kPrefill;
    const Status status = AppendRows(layer, phase, tokens);
    if (of_layer.open_rows() > 0) {
      Refused(status, ErrorCode::kState);
      return false;
    }
    if (!Done(status)) return false;
    changed_ = true;
    of_layer.Append(tokens);
    if (!Observe(layer, tokens)) model().queries_complete = false;
    return true;
  }
  void AppendAll(std::int64_t count, int gap) {
    for (int layer = 0; layer < 3; ++layer) {
      if (Append(layer, count, gap)) Evict(layer);
    }
  }
  void AppendOne(int layer, std::int64_t count) { (void)Append(layer, count, 0); }

  // -- eviction ---------------------------------------------------------------------------------

  // A scorer that lacks queries says so; nothing has changed then.
  bool Decided(const Status& status) {
    const bool excused = !model().queries_complete || spec_.starts_with("waterfill");
    if (!status.ok() && excused && status.error().code == ErrorCode::kInvalidArgument) return false;
    return Done(status);
  }

  void Finish() {
    const Status status = cache().FinishPrefill();
    if (model().finished) return Refused(status, ErrorCode::kState);
    if (!Decided(status)) return;
    changed_ = true;
    model().finished = true;
    for (LayerModel& layer : model().layers) {
      layer.Finish();
      if (spec_.starts_with("waterfill")) layer.AllowDropsInWindow();
    }
  }

  void Evict(int layer) {
    if (!Decided(cache().Evict(layer))) return;
    changed_ = true;
    if (model().layers[layer].open_rows() == 0) model().layers[layer].AllowDrops();
  }

  // -- drafts -----------------------------------------------------------------------------------

  bool Open(int layer, std::int64_t count) {
    LayerModel& of_layer = model().layers[layer];
    const std::vector<Token> tokens = NextTokens(layer, count, 0);
    if (tokens.back().position >= kMostTokens) return false;
    const Status status = AppendRows(layer, Phase::kVerify, tokens);
    if (!model().finished) {
      Refused(status, ErrorCode::kState);
      return false;
    }
    if (of_layer.open_rows() + count > model().speculative_rows) {
      Refused(status, ErrorCode::kInvalidArgument);
      return false;
    }
    if (!Done(status)) return false;
    changed_ = true;
    of_layer.OpenRows(tokens);
    return true;
  }
  void OpenAll(std::int64_t count) {
    for (int layer = 0; layer < 3; ++layer) (void)Open(layer, count);
  }

  void Close(const Status& status, std::int64_t n, std::int64_t accepted) {
    if (!model().SameOpen()) return Refused(status, ErrorCode::kState);
    if (n < 0 || n > model().layers[0].open_rows()) {
      return Refused(status, ErrorCode::kInvalidArgument);
    }
    if (!Done(status)) return;
    changed_ = true;
    for (int layer = 0; layer < 3; ++layer) {
      const std::span<const Token> open = model().layers[layer].open();
      const std::vector<Token> rows(open.begin(), open.begin() + accepted);
      model().layers[layer].Close(accepted);
      if (!rows.empty() && scores_in_decode_ && !Observe(layer, rows)) {
        model().queries_complete = false;
      }
    }
  }
  void Accept(std::int64_t n) { Close(cache().Accept(n), n, n); }
  void Rollback(std::int64_t n) {
    const std::int64_t open = model().layers[0].open_rows();
    Close(cache().Rollback(n), n, open - n);
  }

  void Reserve(int argument) {
    const std::int64_t n = argument == 255 ? std::int64_t{1} << 40 : argument % 40 - 1;
    const Status status = cache().ReserveSpeculative(n);
    if (n < 0 || n > 65536) return Refused(status, ErrorCode::kInvalidArgument);
    for (const LayerModel& layer : model().layers) {
      if (layer.open_rows() > n) return Refused(status, ErrorCode::kState);
    }
    if (!Done(status)) return;
    changed_ = true;
    model().speculative_rows = n;
  }

  // -- taking back ------------------------------------------------------------------------------

  void Trim(int argument, kvsieve::Trim trim) {
    TokenPos furthest = 0;
    for (const LayerModel& layer : model().layers) furthest = std::max(furthest, layer.end());
    const TokenPos end =
        argument < 128 ? furthest - argument % 16 : furthest * (argument - 128) / 120;
    const TokenPos exact = cache().oldest_exact_position();
    const Result<std::int64_t> gone = cache().TrimToPosition(end, trim);
    if (std::max(end, 0) < exact && trim == kvsieve::Trim::kExact && furthest > end) {
      return Refused(StatusOf(gone), ErrorCode::kNotExact);
    }
    if (!Done(StatusOf(gone))) return;
    changed_ = true;
    std::int64_t most = 0;
    for (LayerModel& layer : model().layers) most = std::max(most, layer.Trim(std::max(end, 0)));
    KVS_REQUIRE(*gone == most);
    if (most > 0) model().queries_complete = false;
  }

  void Clear() {
    cache().Clear();
    changed_ = true;
    const std::int64_t speculative = model().speculative_rows;
    model() = NewModel();
    model().speculative_rows = speculative;
    KVS_REQUIRE(cache().Report().resident_bytes() == 0);
  }

  // -- other caches -----------------------------------------------------------------------------

  void Switch(int argument) {
    current_ = static_cast<std::size_t>(argument) % models_.size();
    changed_ = true;
  }

  void Fork() {
    if (set_->size() == kMostMembers) return;
    const Result<int> fork = set_->AddFork(static_cast<int>(current_));
    if (!Done(StatusOf(fork))) return;
    KVS_REQUIRE(*fork == std::ssize(models_));
    models_.push_back(model());
    models_.back().Verify((*set_)[*fork]);
  }

  void Remove(int argument) {
    if (set_->size() == 1) return;
    const int member = argument % set_->size();
    KVS_REQUIRE(set_->Remove(member).ok());
    models_.erase(models_.begin() + member);
    current_ = 0;
    changed_ = true;
  }

  void SaveAndAdd() {
    const std::vector<std::byte> state = SavedBytes();
    if (set_->size() == kMostMembers || state.empty()) return;
    MemorySource source(state);
    const Result<int> member = set_->AddState(source, "fuzz");
    if (!Done(StatusOf(member))) return;
    models_.push_back(model());
    models_.back().speculative_rows = 64;
    models_.back().Verify((*set_)[*member]);
    MemorySink again;
    KVS_REQUIRE((*set_)[*member].Save("fuzz", again).ok());
    KVS_REQUIRE(again.bytes() == state);
  }

  // Into another member, whatever it holds, or into itself.
  void SaveAndLoad(int argument) {
    const std::vector<std::byte> state = SavedBytes();
    if (state.empty()) return;
    const auto to = static_cast<std::size_t>(argument) % models_.size();
    MemorySource source(state);
    if (!Done((*set_)[static_cast<int>(to)].Load(source, "fuzz"))) return;
    const std::int64_t speculative = models_[to].speculative_rows;
    models_[to] = model();
    models_[to].speculative_rows = speculative;
    current_ = to;
    changed_ = true;
    KVS_REQUIRE(SavedBytes() == state);
  }

  // -- reading and mistakes ---------------------------------------------------------------------

  void Attend(int argument) {
    const int layer = argument % 3;
    const TokenPos end = model().layers[layer].end();
    const std::vector<TokenPos> positions = {end, end / 2, end + argument};
    AttendParams params;
    const std::vector<float> sinks(static_cast<std::size_t>(layers_[layer].query_heads), 0.5F);
    if ((argument & 4) != 0) params.sink_logits = sinks;
    if ((argument & 8) != 0) params.sliding_window = 1 + argument / 4;
    if ((argument & 16) != 0) params.softcap = 3.0F;
    if ((argument & 32) != 0) params.scale = 0.01F;
    model().layers[layer].VerifyAttention(cache(), positions, params);
    model().layers[layer].VerifyVisible(cache(), positions);
  }

  // Calls that never work.
  void Mistake(int argument) {
    const std::vector<std::byte> before = SavedBytes();
    const int layer = argument % 3;
    const LayerSpec& spec = layers_[layer];
    std::vector<float> rows(static_cast<std::size_t>(spec.query_heads * spec.key_dim), 1.0F);
    const HeadsView keys = HeadsView::HeadMajor(rows.data(), spec.kv_heads, 1, spec.key_dim);
    HeadsView values = HeadsView::HeadMajor(rows.data(), spec.kv_heads, 1, spec.value_dim);
    if (spec.value_is_key_prefix) values = {};
    const TokenPos end = model().layers[layer].end();
    const Phase phase = model().finished ? Phase::kDecode : Phase::kPrefill;
    const auto append = [&](int to, const HeadsView& k, const HeadsView& v, TokenPos position) {
      const Status status = cache().Append(to, phase, k, v, {&position, 1});
      KVS_REQUIRE(!status.ok());
      KVS_REQUIRE(status.message().find('\n') == std::string::npos);
    };
    append(3, keys, values, end);
    append(-1, keys, values, end);
    append(layer, keys, values, end - 1);
    append(layer, keys, values, INT32_MAX);
    HeadsView wrong = keys;
    wrong.dim += 1;
    append(layer, wrong, values, end);
    wrong = keys;
    wrong.data = nullptr;
    append(layer, wrong, values, end);
    rows[static_cast<std::size_t>(spec.key_dim) - 1] = static_cast<float>(NAN);
    append(layer, keys, values, end);
    KVS_REQUIRE(!cache().Gather(layer, spec.kv_heads, {}, {}, {}).ok());
    KVS_REQUIRE(!set_->Remove(set_->size()).ok());
    KVS_REQUIRE(!set_->AddFork(-1).ok());
    KVS_REQUIRE(SavedBytes() == before);
  }

  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
  bool changed_ = false;  // some part of the step was done
};

}  // namespace
}  // namespace kvsieve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || size > 400) return 0;  // some hundred calls
  kvsieve::fuzz::Life({data, size}).Run();
  return 0;
}
