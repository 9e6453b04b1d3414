// The small parts under traces: hashes, arithmetic, threads, files.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kvsieve/eval/thread_pool.h"
#include "kvsieve/eval/trace.h"
#include "lib/eval/atomic_file.h"
#include "lib/eval/file_error.h"
#include "lib/eval/html/scatter_svg.h"
#include "lib/eval/noise.h"
#include "lib/eval/portable_math.h"
#include "lib/eval/safetensors.h"
#include "lib/eval/sha256.h"

namespace kvsieve::eval {
namespace {

std::string HashOf(const std::string& text) { return Sha256Hex(std::as_bytes(std::span(text))); }

// FIPS 180-4 examples, and lengths around the padding's edge (from coreutils sha256sum).
TEST(Sha256, GivesThePublishedHashes) {
  EXPECT_EQ(HashOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HashOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HashOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HashOf(std::string(55, 'a')),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(HashOf(std::string(64, 'a')),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(HashOf(std::string(1000, 'a')),
            "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

TEST(PortableMath, ExpIsWithinItsBound) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> any(-708, 709);
  for (int i = 0; i < 100000; ++i) {
    const double x = i % 2 == 0 ? any(random) : any(random) / 100;
    const double exact = static_cast<double>(std::exp(static_cast<long double>(x)));
    ASSERT_NEAR(PortableExp(x) / exact, 1, 4e-16) << x;
  }
  EXPECT_EQ(PortableExp(0), 1);
  EXPECT_EQ(PortableExp(-1000), 0);
  EXPECT_EQ(PortableExp(-INFINITY), 0);
  EXPECT_TRUE(std::isfinite(PortableExp(1000)));
}

TEST(PortableMath, TanhIsWithinItsBound) {
  for (double x = -50; x <= 50; x += 0.037) ASSERT_NEAR(PortableTanh(x), std::tanh(x), 1e-15) << x;
  for (double x = 1e-300; x < 30; x *= 1.07) {
    const double exact = static_cast<double>(std::tanh(static_cast<long double>(x)));
    ASSERT_NEAR(PortableTanh(x) / exact, 1, 1e-14) << x;
    ASSERT_NEAR(PortableTanh(-x) / -exact, 1, 1e-14) << x;
  }
  EXPECT_EQ(PortableTanh(0), 0);
  EXPECT_EQ(PortableTanh(1e300), 1);
  EXPECT_EQ(PortableTanh(-1e300), -1);
}

TEST(PortableMath, LogIsWithinItsBound) {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> exponent(-300, 300);
  for (int i = 0; i < 100000; ++i) {
    const double x = i % 2 == 0 ? std::pow(10, exponent(random)) : 1 + exponent(random) / 1000;
    const double exact = static_cast<double>(std::log(static_cast<long double>(x)));
    ASSERT_NEAR(PortableLog(x), exact, 1e-15 * std::max(1.0, std::abs(exact))) << x;
  }
}

TEST(Noise, StreamsRepeatAndDiffer) {
  Noise a(1, 2, 3), b(1, 2, 3), c(1, 2, 4);
  const std::uint64_t first = a.Next();
  EXPECT_EQ(first, b.Next());
  EXPECT_NE(first, c.Next());
}

TEST(Noise, GaussianHasItsMoments) {
  Noise noise(9, 0, 0);
  constexpr int kCount = 200000;
  double sum = 0, square = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = noise.Gaussian();
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  // Five standard deviations of each mean: variances 1, 2 and 96.
  const double deviation = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum / kCount, 0, deviation);
  EXPECT_NEAR(square / kCount, 1, deviation * std::sqrt(2.0));
  EXPECT_NEAR(fourth / kCount, 3, deviation * std::sqrt(96.0));
}

TEST(Noise, BelowStaysBelow) {
  Noise noise(1, 1, 1);
  std::vector<int> seen(7);
  for (int i = 0; i < 1000; ++i) ++seen[static_cast<std::size_t>(noise.Below(7))];
  for (const int count : seen) EXPECT_GT(count, 50);
}

TEST(ThreadPool, RunsEveryTaskOnceOnAWorkerOfItsOwn) {
  for (const int threads : {1, 2, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.workers(), threads);
    for (const std::int64_t tasks : {0, 1, 5, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      std::vector<std::atomic<int>> inside(static_cast<std::size_t>(threads));
      std::atomic<bool> shared_worker = false;
      ParallelFor(pool, tasks, [&](std::int64_t task, int worker) {
        if (inside[static_cast<std::size_t>(worker)]++ != 0) shared_worker = true;
        ++runs[static_cast<std::size_t>(task)];
        --inside[static_cast<std::size_t>(worker)];
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
      EXPECT_FALSE(shared_worker);
    }
  }
}

TEST(ThreadPool, ManyShortJobsInARow) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum = 0;
  for (int job = 0; job < 2000; ++job) {
    ParallelFor(pool, 3, [&](std::int64_t task, int) { sum += task; });
  }
  EXPECT_EQ(sum, 2000 * 3);
}

TEST(ThreadPool, ZeroMeansAllThereAre) { EXPECT_GE(ThreadPool(0).workers(), 1); }

TEST(AtomicFile, ReplacesAFileAndLeavesNoOther) {
  const std::filesystem::path folder = testing::TempDir() + "/kvs_atomic_file";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "out").string();
  for (const std::string text : {"first, longer", "second"}) {
    const std::span<const std::byte> parts[] = {std::as_bytes(std::span(text)).first(3),
                                                std::as_bytes(std::span(text)).subspan(3)};
    ASSERT_TRUE(WriteFileAtomically(path, parts).ok());
    std::ifstream file(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(FileErrors, SayWhatFollowsFromTheCause) {
  const FileErrors errors("a.kvs");
  const struct {
    int error;
    const char* remedy;
  } kCases[] = {{ENOENT, "check the name, and that its folder exists"},
                {ENOTDIR, "a part of the path is no folder"},
                {EISDIR, "name a file"},
                {EACCES, "check the permissions"},
                {EPERM, "check the permissions"},
                {EROFS, "choose a folder that can be written"},
                {ENOSPC, "free space there"},
                {EDQUOT, "your share of the disk is used up"},
                {EFBIG, "raise the limit of file sizes (ulimit -f)"},
                {EMFILE, "close files, or raise their limit (ulimit -n)"},
                {ENFILE, "close files, or raise their limit (ulimit -n)"},
                {ENOMEM, "free memory"},
                {EIO, "the disk reports a fault"},
                {ENXIO, "try again"}};
  for (const auto& [error, remedy] : kCases) {
    const Status status = errors.System("write", error);
    const std::string what = std::string("a.kvs: cannot write: ") + std::strerror(error) + "; ";
    EXPECT_TRUE(status.message().starts_with(what + remedy)) << status.message();
    EXPECT_EQ(status.message().find("permissions") != std::string::npos,
              error == EACCES || error == EPERM);
  }
}

TEST(OneLine, EscapesControlCharactersAndCutsLongText) {
  EXPECT_EQ(OneLine("a\nb\tc\x7F"), "a\\x0ab\\x09c\\x7f");
  EXPECT_EQ(OneLine("k\xC3\xA9y"), "k\xC3\xA9y");
  EXPECT_EQ(OneLine(std::string(100, 'x'), 5), "xxxxx...");
}

TEST(Safetensors, WhatIsWrittenReadsBack) {
  const std::vector<std::uint16_t> half = {1, 2, 3};
  const std::vector<float> single = {1.5F, -2.5F};
  Safetensors file;
  file.metadata = {{"quote", "a \"b\" \\ \n"}, {"empty", ""}};
  file.tensors = {{"half", TensorType::kF16, {3, 1}, std::as_bytes(std::span(half))},
                  {"none", TensorType::kI32, {0, 7}, {}},
                  {"scalar", TensorType::kF32, {}, std::as_bytes(std::span(single)).first(4)},
                  {"single", TensorType::kF32, {1, 2, 1, 1}, std::as_bytes(std::span(single))}};
  const std::vector<std::byte> bytes = EncodeSafetensors(file);
  const auto read = ParseSafetensors(bytes, FileErrors("test"));
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_EQ(read->metadata, file.metadata);
  ASSERT_EQ(read->tensors.size(), 4U);
  for (const Tensor& tensor : read->tensors) {
    const auto original = std::find_if(file.tensors.begin(), file.tensors.end(),
                                       [&](const Tensor& t) { return t.name == tensor.name; });
    ASSERT_NE(original, file.tensors.end());
    EXPECT_EQ(tensor.type, original->type);
    EXPECT_EQ(tensor.shape, original->shape);
    EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), original->bytes.begin(),
                           original->bytes.end()));
    // Wide types first and a padded header: every tensor is aligned to its element.
    const auto place = static_cast<std::size_t>(tensor.bytes.data() - bytes.data());
    EXPECT_EQ(place % TensorTypeBytes(tensor.type), 0U);
  }
}

// Where the number of a point is drawn.
double NumberHeight(const std::string& svg, int number) {
  const std::size_t text = svg.find(">" + std::to_string(number) + "</text>");
  const std::size_t y = svg.rfind(" y=\"", text);
  return std::stod(svg.substr(y + 4));
}

// Of points that touch, whichever is drawn first.
TEST(ScatterSvg, NumbersStandInTheOrderOfTheirPoints) {
  for (const bool upper_first : {false, true}) {
    std::vector<ScatterPoint> points = {
        {1e5, 0.354, false, 7, ""}, {1e5, 0.378, false, 8, ""}, {9e5, 0.01, true, 9, ""}};
    if (upper_first) std::swap(points[0], points[1]);
    const std::string svg = ScatterSvg(points);
    EXPECT_LT(NumberHeight(svg, 8), NumberHeight(svg, 7));  // SVG counts down the page
  }
}

}  // namespace
}  // namespace kvsieve::eval
