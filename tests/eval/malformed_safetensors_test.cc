// Files that are no safetensors container: sizes, JSON, tensor entries, places.
#include <cstring>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/eval/malformed.h"

namespace kvsieve::eval {
namespace {

void AddSizes(std::vector<Malformed>& cases) {
  const auto cut = [](std::size_t bytes) {
    return [bytes](TestFile& file) { file.keep_bytes = bytes; };
  };
  const auto length = [](std::uint64_t bytes) {
    return [bytes](TestFile& file) { file.header_length = bytes; };
  };
  cases.push_back({"Empty", cut(0), {"has 0 bytes", "not a safetensors file"}});
  cases.push_back({"SevenBytes", cut(7), {"has 7 bytes"}});
  cases.push_back({"OnlyTheLength", cut(8), {"header length", "truncated"}});
  cases.push_back({"CutInTheHeader", cut(300), {"header length", "292 that follow", "truncated"}});
  cases.push_back({"CutInTheData",
                   [](TestFile& file) { file.keep_bytes = file.Encode().size() - 100; },
                   {"tensor 'layer.3.", "truncated"}});
  cases.push_back({"CutByOneByte",
                   [](TestFile& file) { file.keep_bytes = file.Encode().size() - 1; },
                   {"tensor 'layer.3.out_eval'", "truncated"}});
  cases.push_back({"OneByteMore",
                   [](TestFile& file) { file.extra_bytes.push_back('x'); },
                   {"holds 1 bytes after the last tensor"}});
  cases.push_back({"NoHeader", length(0), {"header", "does not begin with '{'"}});
  cases.push_back({"HeaderOf2To63", length(std::uint64_t{1} << 63), {"16 MiB"}});
  cases.push_back({"HeaderOfAllOnes", length(~std::uint64_t{0}), {"16 MiB"}});
  cases.push_back({"HeaderJustAboveTheCap", length((16U << 20) + 1), {"16777217", "16 MiB"}});
  cases.push_back({"HeaderAtTheCap", length(16U << 20), {"16777216", "truncated"}});
  cases.push_back({"HeaderTooShort", length(40), {"header", "not UTF-8 JSON"}});
  cases.push_back({"HeaderIntoTheData",
                   [](TestFile& file) {
                     std::uint64_t header_bytes = 0;
                     std::memcpy(&header_bytes, file.Encode().data(), sizeof header_bytes);
                     file.header_length = header_bytes + 8;
                   },
                   {"header", "not UTF-8 JSON"}});
}

void AddJson(std::vector<Malformed>& cases) {
  const std::string first = "\"positions\":{\"dtype\":\"I32\"";
  cases.push_back(HeaderEdit("List", {{"{", "["}}, {"does not begin with '{'"}));
  cases.push_back(HeaderEdit("SpaceFirst", {{"{", " {"}}, {"does not begin with '{'"}));
  cases.push_back(
      HeaderEdit("ByteOrderMark", {{"{", "\xEF\xBB\xBF{"}}, {"does not begin with '{'"}));
  cases.push_back(HeaderEdit("NameNotUtf8", {{"\"tokens\"", "\"tok\xFF\""}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("MetadataNotUtf8", {{"Apache", "\xC3\x28"}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("Surrogate", {{"Apache", "\xED\xA0\x80"}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("LoneEscapedSurrogate", {{"Apache", "\\uD800"}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("RawNewline", {{"Apache", "a\nb"}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("Comment", {{"{", "{/* no */"}}, {"not UTF-8 JSON"}));
  cases.push_back({"Garbage",
                   [](TestFile& file) {
                     file.header_edits = {{"]}}", "]}} x"}};
                   },
                   {"not UTF-8 JSON"}});
  cases.push_back(
      HeaderEdit("ZeroByteAndMore", {{"]}}", std::string("]}}\0 x", 6)}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("NotClosed", {{"]}}", "]}"}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("NaNNumber", {{"[0,24]", "[0,NaN]"}}, {"not UTF-8 JSON"}));
  cases.push_back(HeaderEdit("TensorTwice", {{"\"tokens\":", "\"positions\":"}},
                             {"tensor 'positions'", "given twice"}));
  cases.push_back(HeaderEdit("TensorTwiceEscaped", {{"\"tokens\":", "\"\\u0070ositions\":"}},
                             {"tensor 'positions'", "given twice"}));
  cases.push_back(HeaderEdit("MetadataKeyTwice", {{"model.arch", "model.name"}},
                             {"__metadata__", "'model.name'", "given twice"}));
  cases.push_back(HeaderEdit("MetadataTwice", {{first, "\"__metadata__\":{}," + first}},
                             {"__metadata__", "given twice"}));
  cases.push_back(HeaderEdit("DtypeTwice", {{first, first + ",\"dtype\":\"I32\""}},
                             {"tensor 'positions'", "'dtype'", "given twice"}));
  cases.push_back(HeaderEdit("ShapeTwice", {{first, first + ",\"shape\":[6]"}},
                             {"tensor 'positions'", "'shape'", "given twice"}));
  cases.push_back(HeaderEdit("OffsetsTwice", {{first, first + ",\"data_offsets\":[0,24]"}},
                             {"tensor 'positions'", "'data_offsets'", "given twice"}));
  cases.push_back(HeaderEdit("UnknownKey", {{first, first + ",\"strides\":[1]"}},
                             {"tensor 'positions'", "'strides'", "not one of"}));
  cases.push_back(HeaderEdit("MetadataNumber", {{"\"0.5\"", "0.5"}},
                             {"__metadata__", "did not expect the number 0.5", "attn.scale"}));
  cases.push_back(HeaderEdit("MetadataObject", {{"\"0.5\"", "{}"}}, {"did not expect an object"}));
  cases.push_back(HeaderEdit("MetadataNull", {{"\"0.5\"", "null"}}, {"did not expect null"}));
  cases.push_back(HeaderEdit("TensorIsText", {{"\"tokens\":{", "\"a\":\"b\",\"tokens\":{"}},
                             {"tensor 'a'", "did not expect text"}));
  cases.push_back(HeaderEdit("TensorIsList", {{"\"tokens\":{", "\"a\":[],\"tokens\":{"}},
                             {"tensor 'a'", "did not expect a list"}));
  cases.push_back(HeaderEdit("TensorIsTrue", {{"\"tokens\":{", "\"a\":true,\"tokens\":{"}},
                             {"tensor 'a'", "did not expect a boolean"}));
  cases.push_back(HeaderEdit("NameWithNewline", {{"\"tokens\":", "\"a\\nb\":"}}, {"'a\\x0ab'"}));
  cases.push_back(HeaderEdit("NameWithNul", {{"\"tokens\":", "\"tokens\\u0000\":"}},
                             {"'tokens\\x00'", "not a name of kv-trace 1"}));
}

void AddTensorEntries(std::vector<Malformed>& cases) {
  const std::string shape = "\"shape\":[6]";
  const auto bad_shape = [&](const std::string& text, const std::vector<std::string>& words) {
    cases.push_back(
        HeaderEdit("shape " + text.substr(0, 40), {{shape, "\"shape\":" + text}}, words));
  };
  cases.push_back(HeaderEdit("DtypeF64", {{"I32", "F64"}}, {"tensor 'positions'", "dtype 'F64'"}));
  cases.push_back(HeaderEdit("DtypeLowerCase", {{"I32", "i32"}}, {"dtype 'i32'"}));
  cases.push_back(HeaderEdit("DtypeNumber", {{"\"I32\"", "32"}}, {"did not expect the number 32"}));
  cases.push_back(HeaderEdit("DtypeList", {{"\"I32\"", "[]"}}, {"did not expect a list"}));
  cases.push_back(HeaderEdit("NoDtype", {{"\"dtype\":\"I32\",", ""}}, {"needs dtype, shape"}));
  cases.push_back(
      HeaderEdit("NoShape", {{shape + ",", ""}}, {"tensor 'positions'", "needs dtype"}));
  cases.push_back(HeaderEdit("NoOffsets", {{",\"data_offsets\":[0,24]", ""}}, {"needs dtype"}));
  cases.push_back(HeaderEdit("OneOffset", {{"[0,24]", "[0]"}}, {"needs dtype"}));
  cases.push_back(HeaderEdit("ThreeOffsets", {{"[0,24]", "[0,24,24]"}}, {"more than 2 numbers"}));
  cases.push_back(HeaderEdit("OffsetText", {{"[0,24]", "[\"0\",24]"}}, {"did not expect text"}));
  cases.push_back(HeaderEdit("OffsetNegative", {{"[0,24]", "[-24,0]"}}, {"the number -24"}));
  bad_shape("[6,1,1,1,1]", {"tensor 'positions'", "shape has more than 4 numbers"});
  bad_shape("[-6]", {"did not expect the number -6"});
  bad_shape("[6.0]", {"did not expect the number 6.0"});
  bad_shape("[6e0]", {"did not expect the number 6e0"});
  bad_shape("[9223372036854775808]", {"not below 2^63"});
  bad_shape("[18446744073709551616]", {"did not expect the number 18446744073709551616"});
  bad_shape("[99999999999999999999999999]", {"did not expect the number"});
  bad_shape("[1e999]", {"header", "not UTF-8 JSON"});
  bad_shape("[4611686018427387904]", {"more than 2^63 bytes"});
  bad_shape("[4294967296,4294967296,1]", {"more than 2^63 bytes"});
  bad_shape("[4294967296,4294967296,0]", {"more than 2^63 bytes"});
  bad_shape("[2199023255552]", {"do not span the 8796093022208 bytes"});
  bad_shape("[[6]]", {"did not expect a list"});
  bad_shape("6", {"did not expect the number 6"});
  bad_shape(std::string(100000, '['), {"did not expect a list"});
  cases.push_back({"TooManyTensors",
                   [](TestFile& file) {
                     file.tensors.resize(65537);
                     for (std::size_t i = 0; i < file.tensors.size(); ++i) {
                       file.tensors[i] = {StrCat("t", i), "I32", {0}, "", std::nullopt};
                     }
                   },
                   {"tensor 't65536'", "65536 tensors"}});
}

void AddOffsets(std::vector<Malformed>& cases) {
  const auto place = [&](const std::string& name, const std::string& begin, const std::string& end,
                         const std::vector<std::string>& words) {
    cases.push_back({name,
                     [=](TestFile& file) {
                       file.Get("q_window_positions").data_offsets = {begin, end};
                     },
                     words});
  };
  // The tensor lies at [24, 36).
  place("OffsetsTooFar", "24", "40", {"[24, 40]", "do not span the 12 bytes"});
  place("OffsetsSwapped", "36", "24", {"[36, 24]", "do not span"});
  place("OffsetsOverlap", "20", "32", {"begins at data byte 20", "overlap", "ends at 24"});
  place("OffsetsGap", "28", "40", {"begins at data byte"});
  place("OffsetsPastTheEnd", "1000000", "1000012", {"ends at data byte 1000012", "truncated"});
  place("OffsetsNear2To63", "9223372036854775795", "9223372036854775807", {"truncated"});
  cases.push_back({"GapAtTheBeginning",
                   [](TestFile& file) {
                     file.tensors.front().bytes += "abcd";
                     file.tensors.front().data_offsets = {"4", "28"};
                   },
                   {"tensor 'positions'", "begins at data byte 4", "a gap after"}});
  cases.push_back({"TwoTensorsAtOnePlace",
                   [](TestFile& file) {
                     file.Get("tokens").data_offsets = {"0", "24"};
                   },
                   {"begins at data byte 0", "overlap"}});
}

TEST(MalformedSafetensors, EachIsRefusedInOneLineThatSaysWhat) {
  std::vector<Malformed> cases;
  for (const auto add : {AddSizes, AddJson, AddTensorEntries, AddOffsets}) add(cases);
  EXPECT_GE(cases.size(), 60U);
  ExpectRefused(cases);
}

TEST(MalformedSafetensors, EveryTruncationIsRefused) {
  const std::vector<std::byte> good = MakeTestTrace({}).Encode();
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    const auto trace =
        Trace::FromBytes({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes)}, "cut");
    ASSERT_FALSE(trace.ok()) << bytes;
  }
}

}  // namespace
}  // namespace kvsieve::eval
