#include "kvsieve/eval/trace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/sha256.h"
#include "tests/eval/test_trace.h"

namespace kvsieve::eval {
namespace {

constexpr char kBundled[] = KVS_DATA_DIR "/smollm2-135m-small.safetensors";

Trace OpenGood(const TestFile& file) {
  auto trace = Trace::FromBytes(file.Encode(), "folder/test.safetensors");
  EXPECT_TRUE(trace.ok()) << trace.message();
  return *std::move(trace);
}

float Element(const HeadsView& view, int head, std::int64_t row, int element) {
  float value = 0;
  const auto* bytes = static_cast<const std::byte*>(view.row(head, row));
  ConvertToF32(bytes + static_cast<std::size_t>(element) * ElementBytes(view.type), view.type, 1,
               &value);
  return value;
}

TEST(Trace, GivesShapesSequencesAndRows) {
  TestFile file = MakeTestTrace({});
  const Trace trace = OpenGood(file);
  EXPECT_EQ(trace.name(), "test.safetensors");
  EXPECT_EQ(trace.tokens(), 6);
  EXPECT_EQ(trace.window(), 3);
  EXPECT_EQ(trace.n_eval(), 2);
  EXPECT_EQ(trace.positions()[5], 5);
  EXPECT_EQ(trace.window_positions()[0], 3);
  EXPECT_EQ(trace.eval_positions()[1], 7);
  EXPECT_EQ(trace.token_ids()[5], 105);
  EXPECT_EQ(trace.metadata().at("model.name"), "test");
  ASSERT_EQ(trace.layers().size(), 2U);
  const TraceLayer& layer = trace.layers()[1];
  EXPECT_EQ(layer.spec.layer, 3);
  EXPECT_EQ(layer.spec.query_heads, 4);
  EXPECT_EQ(layer.spec.kv_heads, 2);
  EXPECT_EQ(layer.spec.key_dim, 3);
  EXPECT_EQ(layer.spec.value_dim, 5);
  EXPECT_EQ(layer.spec.scale, 0.5F);
  EXPECT_EQ(layer.spec.softcap, 0);
  EXPECT_EQ(layer.spec.sliding_window, 0);
  float last = 0;
  const std::string& bytes = file.Get("layer.3.v").bytes;
  std::memcpy(&last, bytes.data() + bytes.size() - sizeof last, sizeof last);
  EXPECT_EQ(Element(layer.values, 1, 5, 4), last);
}

TEST(Trace, ReadsEveryElementType) {
  TestShape shape;
  const TestFile as_f32 = MakeTestTrace(shape);
  const Trace exact = OpenGood(as_f32);
  for (const std::string dtype : {"F16", "BF16"}) {
    shape.dtype = dtype;
    const Trace trace = OpenGood(MakeTestTrace(shape));
    const HeadsView& keys = trace.layers()[0].keys;
    EXPECT_EQ(keys.type, dtype == "F16" ? ElementType::kF16 : ElementType::kBF16);
    const float value = Element(exact.layers()[0].keys, 1, 2, 1);
    EXPECT_EQ(Element(keys, 1, 2, 1),
              dtype == "F16" ? ToFloat(ToF16(value)) : ToFloat(ToBF16(value)));
  }
}

TEST(Trace, TensorsMayDifferInType) {
  TestFile file = MakeTestTrace({});
  TestTensor& values = file.Get("layer.0.v");
  values.dtype = "BF16";
  values.bytes = EncodeElements("BF16", std::vector<float>(2 * 6 * 5, 1.5F));
  const Trace trace = OpenGood(file);
  EXPECT_EQ(trace.layers()[0].keys.type, ElementType::kF32);
  EXPECT_EQ(Element(trace.layers()[0].values, 1, 5, 4), 1.5F);
}

TEST(Trace, LayersMayDifferInShapeAndComeInNumericOrder) {
  TestFile file = MakeTestTrace({.layers = {10, 2}});
  TestShape other{.layers = {7}, .query_heads = 6, .kv_heads = 1, .key_dim = 33, .value_dim = 8};
  for (const TestTensor& tensor : MakeTestTrace(other).tensors) {
    if (tensor.name.starts_with("layer.")) file.tensors.push_back(tensor);
  }
  file.SetMetadata("attn.scale", "0.25, 1e-1,2");
  file.SetMetadata("attn.sliding_window", "0,4,0");
  file.SetMetadata("attn.softcap", "0,0,30");
  const Trace trace = OpenGood(file);
  const std::vector<LayerSpec> specs = trace.LayerSpecs();
  ASSERT_EQ(specs.size(), 3U);
  EXPECT_EQ(specs[0].layer, 2);
  EXPECT_EQ(specs[1].layer, 7);
  EXPECT_EQ(specs[2].layer, 10);
  EXPECT_EQ(specs[1].group(), 6);
  EXPECT_EQ(specs[1].key_dim, 33);
  EXPECT_EQ(specs[0].scale, 0.25F);
  EXPECT_EQ(specs[1].scale, 0.1F);
  EXPECT_EQ(specs[1].sliding_window, 4);
  EXPECT_EQ(specs[2].softcap, 30);
}

TEST(Trace, OptionalPartsMayBeMissing) {
  TestFile file = MakeTestTrace({.eval_rows = false, .eval_outputs = false});
  file.Remove("tokens");
  const Trace trace = OpenGood(file);
  EXPECT_TRUE(trace.token_ids().empty());
  EXPECT_EQ(trace.layers()[0].eval_keys.data, nullptr);
  EXPECT_EQ(trace.layers()[0].eval_values.data, nullptr);
  EXPECT_EQ(trace.layers()[0].eval_outputs.data, nullptr);
}

TEST(Trace, WindowMayBeEmpty) {
  const Trace trace = OpenGood(MakeTestTrace({.window = 0}));
  EXPECT_EQ(trace.window(), 0);
}

TEST(Trace, PositionsMayHaveGaps) {
  TestFile file = MakeTestTrace({});
  file.Get("positions").bytes = EncodeInts({0, 2, 4, 100, 200, 2000000000});
  file.Get("q_window_positions").bytes = EncodeInts({2, 100, 2000000000});
  file.Get("q_eval_positions").bytes = EncodeInts({2000000001, 2147483646});
  EXPECT_EQ(OpenGood(file).eval_positions()[1], 2147483646);
}

// A writer that does not pad its header leaves tensors at odd addresses.
TEST(Trace, UnalignedTensorsReadTheSame) {
  TestFile file = MakeTestTrace({});
  const Trace aligned = OpenGood(file);
  file.header_padding_to = 1;
  for (int extra = 0; extra < 8; ++extra) {
    file.SetMetadata("text.source", std::string(static_cast<std::size_t>(extra), 'x'));
    const Trace trace = OpenGood(file);
    EXPECT_EQ(trace.eval_positions()[1], 7);
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(Element(trace.layers()[1].keys, head, 5, 2),
                Element(aligned.layers()[1].keys, head, 5, 2));
    }
  }
}

TEST(Trace, TensorsMayLieInAnyOrder) {
  TestFile file = MakeTestTrace({});
  std::reverse(file.tensors.begin(), file.tensors.end());
  EXPECT_EQ(OpenGood(file).positions()[5], 5);
  // Named in one order, placed in another: positions and tokens (24 bytes each) swap places.
  file = MakeTestTrace({});
  std::swap(file.Get("positions").bytes, file.Get("tokens").bytes);
  file.Get("positions").data_offsets = {"44", "68"};
  file.Get("tokens").data_offsets = {"0", "24"};
  const Trace trace = OpenGood(file);
  EXPECT_EQ(trace.positions()[5], 5);
  EXPECT_EQ(trace.token_ids()[5], 105);
}

TEST(Trace, StaysValidWhenMoved) {
  Trace first = OpenGood(MakeTestTrace({}));
  Trace second = OpenGood(MakeTestTrace({.tokens = 9}));
  first = std::move(second);
  EXPECT_EQ(first.positions()[8], 8);
}

TEST(Trace, OpensAFileByItsPath) {
  const std::string path = testing::TempDir() + "kvs_trace_test.safetensors";
  const std::vector<std::byte> bytes = MakeTestTrace({}).Encode();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  const auto trace = Trace::Open(path);
  ASSERT_TRUE(trace.ok()) << trace.message();
  EXPECT_EQ(trace->name(), "kvs_trace_test.safetensors");
  std::filesystem::remove(path);
}

TEST(Trace, BundledCaptureOpens) {
  const auto trace = Trace::Open(kBundled);
  ASSERT_TRUE(trace.ok()) << trace.message();
  EXPECT_EQ(trace->tokens(), 1024);
  EXPECT_EQ(trace->n_eval(), 48);
  ASSERT_EQ(trace->layers().size(), 5U);
  const int numbers[] = {0, 7, 14, 21, 29};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(trace->layers()[i].spec.layer, numbers[i]);
  EXPECT_EQ(Sha256Hex(std::as_bytes(trace->token_ids())), trace->metadata().at("prompt.sha256"));
}

}  // namespace
}  // namespace kvsieve::eval
