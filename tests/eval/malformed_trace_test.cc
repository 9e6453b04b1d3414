// Safetensors files that are no kv-traces: names, shapes, positions, metadata, NaN and Inf.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/eval/malformed.h"

namespace kvsieve::eval {
namespace {

Malformed WithoutTensor(const std::string& tensor, const std::vector<std::string>& words) {
  return {"Without " + tensor, [tensor](TestFile& file) { file.Remove(tensor); }, words};
}

Malformed WithMetadata(const std::string& key, const std::string& text,
                       const std::vector<std::string>& words) {
  return {StrCat(key, " = '", text, "'"),
          [key, text](TestFile& file) { file.SetMetadata(key, text); }, words};
}

Malformed WithShape(const std::string& tensor, const std::vector<std::uint64_t>& shape,
                    const std::vector<std::string>& words) {
  return {StrCat(tensor, " of another shape"),
          [=](TestFile& file) {
            TestTensor& edited = file.Get(tensor);
            std::uint64_t elements = 1;
            for (const std::uint64_t extent : shape) elements *= extent;
            edited.shape = shape;
            edited.bytes = std::string(elements * 4, '\0');
          },
          words};
}

Malformed WithInts(const std::string& tensor, const std::vector<std::int32_t>& values,
                   const std::vector<std::string>& words) {
  return {StrCat(tensor, " with other numbers"),
          [=](TestFile& file) {
            file.Get(tensor).bytes = EncodeInts(values);
            file.Get(tensor).shape = {values.size()};
          },
          words};
}

// Element (head, row, element) of a [heads, rows, dim] tensor replaced, all rows in `dtype`.
Malformed WithValue(const std::string& tensor, const std::string& dtype, float value,
                    const std::vector<int>& place, const std::vector<std::string>& words) {
  return {StrCat(tensor, " in ", dtype, " with ", value),
          [=](TestFile& file) {
            TestShape shape;
            shape.dtype = dtype;
            file = MakeTestTrace(shape);
            TestTensor& edited = file.Get(tensor);
            const std::string element = EncodeElements(dtype, {value});
            const std::size_t index = (static_cast<std::size_t>(place[0]) * edited.shape[1] +
                                       static_cast<std::size_t>(place[1])) *
                                          edited.shape[2] +
                                      static_cast<std::size_t>(place[2]);
            edited.bytes.replace(index * element.size(), element.size(), element);
          },
          words};
}

void AddNames(std::vector<Malformed>& cases) {
  for (const std::string name :
       {"extra", "layer.00.k", "layer.-1.k", "layer.1.w", "layer.1000000.k", "layer..k", "layer.1",
        "layer.1.k.v", "layer.1.", "Layer.1.k", "layer. 1.k", "positions ", ""}) {
    cases.push_back({"Unknown name " + name,
                     [name](TestFile& file) {
                       file.tensors.push_back({name, "F32", {1}, "abcd", std::nullopt});
                     },
                     {"tensor '" + name + "'", "not a name of kv-trace 1"}});
  }
  cases.push_back({"NoLayers", [](TestFile& file) { file.tensors.resize(4); }, {"holds no layer"}});
  for (const std::string part : {"k", "v", "q_window", "q_eval"}) {
    cases.push_back(WithoutTensor("layer.3." + part, {"tensor 'layer.3." + part + "'", "missing"}));
  }
  for (const std::string name : {"positions", "q_window_positions", "q_eval_positions"}) {
    cases.push_back(WithoutTensor(name, {"tensor '" + name + "'", "missing"}));
  }
  cases.push_back(WithoutTensor("layer.3.v", {"holds V also where it lies in K"}));
  cases.push_back(WithoutTensor("layer.3.v_eval", {"'layer.3.k_eval'", "partner v_eval"}));
  cases.push_back(WithoutTensor("layer.3.k_eval", {"'layer.3.v_eval'", "partner k_eval"}));
}

void AddShapes(std::vector<Malformed>& cases) {
  // heads 4/2, key_dim 3, value_dim 5, tokens 6, window 3, n_eval 2
  cases.push_back(WithShape("layer.0.k", {2, 7, 3}, {"[2, 7, 3], not [2, 6, 3]"}));
  cases.push_back(WithShape("layer.3.v", {1, 6, 5}, {"'layer.3.v'", "[1, 6, 5], not [2, 6, 5]"}));
  cases.push_back(WithShape("layer.0.k", {3, 6, 3}, {"layer 0", "not a multiple of 3 KV heads"}));
  cases.push_back(WithShape("layer.0.k", {8, 6, 3}, {"not a multiple of 8 KV heads"}));
  cases.push_back(WithShape("layer.0.k", {0, 6, 3}, {"layer 0", "head counts", "0 KV heads"}));
  cases.push_back(WithShape("layer.0.k", {2, 6, 0}, {"layer 0", "key_dim 0"}));
  cases.push_back(WithShape("layer.0.k", {2, 6, 5000}, {"layer 0", "key_dim 5000", "4096"}));
  cases.push_back(WithShape("layer.0.v", {2, 6, 4097}, {"value_dim 4097"}));
  cases.push_back(WithShape("layer.0.k", {std::uint64_t{1} << 33, 0, 3}, {"head counts"}));
  cases.push_back(WithShape("layer.0.k", {12, 3}, {"[12, 3]", "three dimensions"}));
  cases.push_back(WithShape("layer.0.k", {1, 2, 6, 3}, {"three dimensions"}));
  cases.push_back(WithShape("layer.0.q_window", {4, 3, 4}, {"[4, 3, 4], not [4, 3, 3]"}));
  cases.push_back(WithShape("layer.0.q_window", {2, 3, 3}, {"[2, 3, 3], not [4, 3, 3]"}));
  cases.push_back(WithShape("layer.0.q_window", {4, 2, 3}, {"[4, 2, 3], not [4, 3, 3]"}));
  cases.push_back(WithShape("layer.0.q_eval", {4, 3, 3}, {"[4, 3, 3], not [4, 2, 3]"}));
  cases.push_back(WithShape("layer.0.k_eval", {2, 3, 3}, {"'layer.0.k_eval'", "not [2, 2, 3]"}));
  cases.push_back(WithShape("layer.0.v_eval", {2, 2, 4}, {"'layer.0.v_eval'", "not [2, 2, 5]"}));
  cases.push_back(
      WithShape("layer.0.out_eval", {4, 2, 3}, {"'layer.0.out_eval'", "not [4, 2, 5]"}));
  cases.push_back(WithShape("positions", {2, 3}, {"'positions'", "I32 [2, 3]", "one dimension"}));
  cases.push_back(WithShape("positions", {}, {"'positions'", "one dimension"}));
  cases.push_back({"KeysI32",
                   [](TestFile& file) { file.Get("layer.0.k").dtype = "I32"; },
                   {"'layer.0.k'", "is I32, not F16, BF16 or F32"}});
  cases.push_back({"PositionsF32",
                   [](TestFile& file) { file.Get("positions").dtype = "F32"; },
                   {"'positions'", "is F32", "not I32"}});
  cases.push_back({"TokensF32",
                   [](TestFile& file) { file.Get("tokens").dtype = "F32"; },
                   {"'tokens'", "is F32", "not I32"}});
}

void AddPositions(std::vector<Malformed>& cases) {
  cases.push_back(WithInts("positions", {}, {"'positions'", "empty"}));
  cases.push_back(WithInts("q_eval_positions", {}, {"'q_eval_positions'", "empty"}));
  cases.push_back(WithInts("positions", {-1, 1, 2, 3, 4, 5}, {"-1 at index 0", "below 0"}));
  cases.push_back(
      WithInts("positions", {0, 1, 1, 3, 4, 5}, {"not strictly increasing", "index 2"}));
  cases.push_back(WithInts("positions", {0, 1, 2, 3, 5, 4}, {"4 at index 5 follows 5"}));
  cases.push_back(WithInts("q_window_positions", {3, 5, 4}, {"not strictly increasing"}));
  cases.push_back(WithInts("q_window_positions", {4, 5, 6}, {"holds 6, which is not a prompt"}));
  cases.push_back(WithInts("q_eval_positions", {5, 6}, {"begins at 5", "last prompt position 5"}));
  cases.push_back(WithInts("q_eval_positions", {6, 6}, {"'q_eval_positions'", "not strictly"}));
  // A position has a next one.
  for (const std::string name : {"positions", "q_eval_positions"}) {
    cases.push_back(
        WithInts(name, {6, 2147483647}, {"'" + name + "'", "2147483647 at index 1", "2147483646"}));
  }
  cases.push_back(WithInts("tokens", {1, 2, 3}, {"'tokens'", "3 ids for 6"}));
}

void AddMetadata(std::vector<Malformed>& cases) {
  for (const std::string key :
       {"kvtrace.version", "model.name", "model.arch", "model.license", "attn.scale", "rope.type",
        "rope.theta", "source.dtype", "capture.tool", "prompt.sha256"}) {
    cases.push_back({"Without " + key,
                     [key](TestFile& file) { file.RemoveMetadata(key); },
                     {"key '" + key + "' is missing"}});
  }
  cases.push_back(WithMetadata("kvtrace.version", "2", {"'kvtrace.version'", "'2' is not 1"}));
  for (const std::string scale :
       {"0", "-0.5", "nan", "inf", "1e999", "1e-60", "1e60", "", "fast", "0.5x", "0.5,0"}) {
    cases.push_back(WithMetadata("attn.scale", scale, {"'attn.scale'", "greater than 0"}));
  }
  cases.push_back(WithMetadata("attn.scale", "1,2,3", {"3 values for 2 stored layers"}));
  cases.push_back(WithMetadata("attn.softcap", "-1", {"'attn.softcap'", "'-1'"}));
  cases.push_back(WithMetadata("attn.softcap", "30,nan", {"'attn.softcap'", "'nan'"}));
  for (const std::string window : {"1.5", "-1", "2147483648", "many"}) {
    cases.push_back(
        WithMetadata("attn.sliding_window", window, {"'" + window + "'", "whole number"}));
  }
  cases.push_back(WithMetadata("rope.type", "spiral", {"'rope.type'", "'spiral'"}));
  cases.push_back(WithMetadata("rope.theta", "-1", {"'rope.theta'", "'-1'"}));
  cases.push_back(WithMetadata("rope.theta", "1,2,3", {"'rope.theta'", "3 values"}));
  cases.push_back(WithMetadata("prompt.sha256", "abc", {"'prompt.sha256'", "64 hexadecimal"}));
  cases.push_back(WithMetadata("prompt.sha256", std::string(64, 'g'), {"64 hexadecimal"}));
}

void AddNonFinite(std::vector<Malformed>& cases) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto at = [](int head, int row, int element) {
    return StrCat("head ", head, ", row ", row, ", element ", element);
  };
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    cases.push_back(
        WithValue("layer.3.k", dtype, kNaN, {1, 4, 2}, {"'layer.3.k'", "NaN", at(1, 4, 2)}));
    cases.push_back(
        WithValue("layer.0.v", dtype, kInf, {0, 5, 4}, {"'layer.0.v'", "Inf", at(0, 5, 4)}));
    cases.push_back(
        WithValue("layer.0.k", dtype, -kInf, {0, 0, 0}, {"'layer.0.k'", "Inf", at(0, 0, 0)}));
  }
  cases.push_back(WithValue("layer.3.q_window", "F16", kNaN, {3, 2, 2}, {"q_window", at(3, 2, 2)}));
  cases.push_back(WithValue("layer.0.q_eval", "BF16", kInf, {2, 1, 0}, {"q_eval", at(2, 1, 0)}));
  cases.push_back(WithValue("layer.0.k_eval", "F32", kNaN, {1, 1, 1}, {"k_eval", at(1, 1, 1)}));
  cases.push_back(WithValue("layer.0.v_eval", "F16", kInf, {1, 0, 4}, {"v_eval", at(1, 0, 4)}));
  cases.push_back(WithValue("layer.3.out_eval", "F32", kNaN, {3, 1, 4}, {"out_eval", at(3, 1, 4)}));
}

TEST(MalformedTrace, GoodFileOpens) {
  const auto trace = Trace::FromBytes(MakeTestTrace({}).Encode(), "good.safetensors");
  ASSERT_TRUE(trace.ok()) << trace.message();
}

TEST(MalformedTrace, EachIsRefusedInOneLineThatSaysWhat) {
  std::vector<Malformed> cases;
  for (const auto add : {AddNames, AddShapes, AddPositions, AddMetadata, AddNonFinite}) add(cases);
  EXPECT_GE(cases.size(), 60U);
  ExpectRefused(cases);
}

TEST(MalformedTrace, NonFiniteRowsHaveTheirOwnCode) {
  TestFile file = MakeTestTrace({});
  file.Get("layer.0.k").bytes.replace(0, 4, EncodeElements("F32", {NAN}));
  const auto trace = Trace::FromBytes(file.Encode(), "nan");
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.error().code, ErrorCode::kNonFinite);
}

TEST(MalformedTrace, WhatIsNotAFileIsRefused) {
  for (const std::string path : {"/nonexistent/trace", "/", "/dev/null", ""}) {
    const auto trace = Trace::Open(path);
    ASSERT_FALSE(trace.ok()) << path;
    EXPECT_EQ(trace.error().code, ErrorCode::kIo) << trace.message();
  }
}

}  // namespace
}  // namespace kvsieve::eval
