// Saved caches in files: complete, or as they were.
#include "kvsieve/eval/state_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kvsieve::eval {
namespace {

namespace fs = std::filesystem;

std::string Content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder of its own, and caches of one layer.
class StateFile : public ::testing::Test {
 protected:
  StateFile() {
    fs::create_directories(folder_);
    path_ = folder_ / "cache.kvs";
  }
  ~StateFile() override { fs::remove_all(folder_); }

  static Cache MakeCache(std::int64_t rows) {
    LayerSpec layer;
    layer.query_heads = 2;
    layer.kv_heads = 1;
    layer.key_dim = layer.value_dim = 64;
    layer.scale = 0.125F;
    Result<Pipeline> pipeline = Pipeline::Parse("none | kv=int8 | tail=10");
    Result<Cache> cache =
        Cache::Create(std::make_shared<const Pipeline>(*std::move(pipeline)), {layer}, {});
    std::vector<float> elements(static_cast<std::size_t>(rows) * 64);
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i % 97);
    std::vector<TokenPos> positions;
    for (std::int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<TokenPos>(r));
    const HeadsView view = HeadsView::HeadMajor(elements.data(), 1, rows, 64);
    EXPECT_TRUE(cache->Append(0, Phase::kPrefill, view, view, positions).ok());
    EXPECT_TRUE(cache->FinishPrefill().ok());
    return *std::move(cache);
  }
  std::int64_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }

  const fs::path folder_ = testing::TempDir() + "/kvs_state_file";
  fs::path path_;
};

TEST_F(StateFile, WhatIsSavedIsLoaded) {
  const Cache cache = MakeCache(100);
  ASSERT_TRUE(SaveCache(cache, "a model", path_).ok());
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(IsSavedCache(path_));
  const Result<StateInfo> info = ReadStateInfo(path_);
  ASSERT_TRUE(info.ok()) << info.message();
  EXPECT_EQ(info->bytes, static_cast<std::int64_t>(fs::file_size(path_)));
  const Result<Cache> loaded = LoadCache(path_, "a model", CacheOptions{});
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_EQ(loaded->next_position(), 100);
  Cache other = MakeCache(7);
  ASSERT_TRUE(LoadCache(path_, std::nullopt, other).ok());
  EXPECT_EQ(other.next_position(), 100);
  ASSERT_TRUE(SaveCache(other, "a model", folder_ / "again.kvs").ok());
  EXPECT_EQ(Content(folder_ / "again.kvs"), Content(path_));
}

// docs/state.md shows these lines.
TEST_F(StateFile, TheDocumentsAreRight) {
  const Cache cache = MakeCache(30);
  const std::string path = path_.string();
  const std::string identity = "llama-3-8b q4, system prompt 7";  // what the rows are good for
  const Status saved = SaveCache(cache, identity, path);
  Result<Cache> again = LoadCache(path, identity, CacheOptions{});
  ASSERT_TRUE(saved.ok()) << saved.message();
  ASSERT_TRUE(again.ok()) << again.message();
  EXPECT_EQ(again->next_position(), 30);
}

TEST_F(StateFile, U87_AFileThatIsNotThereLeavesTheCacheAsItWas) {
  Cache cache = MakeCache(20);
  for (const fs::path& path : {folder_ / "missing.kvs", folder_}) {
    const Status status = LoadCache(path, std::nullopt, cache);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_TRUE(status.message().starts_with(path.string() + ": ")) << status.message();
    EXPECT_EQ(cache.next_position(), 20);
    EXPECT_EQ(cache.rows(0, 0), 20);
    EXPECT_FALSE(LoadCache(path, std::nullopt, CacheOptions{}).ok());
    EXPECT_FALSE(ReadStateInfo(path).ok());
    EXPECT_FALSE(IsSavedCache(path));
  }
}

TEST_F(StateFile, ErrorsNameTheFileAndTheField) {
  ASSERT_TRUE(SaveCache(MakeCache(20), "model A", path_).ok());
  const Result<Cache> other = LoadCache(path_, "model B", CacheOptions{});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.message(), path_.string() + ": saved state: identity: saved for 'model A', " +
                                 "asked for 'model B'");
  fs::resize_file(path_, fs::file_size(path_) - 1);
  const Result<Cache> shorter = LoadCache(path_, "model A", CacheOptions{});
  ASSERT_FALSE(shorter.ok());
  EXPECT_NE(shorter.message().find("0 of 1 layers"), std::string::npos) << shorter.message();
  std::ofstream(path_) << "no cache";
  EXPECT_FALSE(IsSavedCache(path_));
  EXPECT_NE(LoadCache(path_, "model A", CacheOptions{}).message().find("magic"), std::string::npos);
}

// A limit on the size of files stands for a full disk: the write fails in the middle.
TEST_F(StateFile, AWriteThatFailsLeavesTheOldFile) {
  const Cache old = MakeCache(20);
  ASSERT_TRUE(SaveCache(old, "old", path_).ok());
  const std::string before = Content(path_);
  const Cache large = MakeCache(4000);  // some 600 KB
  struct rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{100000}, rlim_t{500000}}) {
    const struct rlimit small = {bytes, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const Status status = SaveCache(large, "new", path_);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_TRUE(status.message().starts_with(path_.string() + ": cannot write: "))
        << status.message();
    EXPECT_EQ(Content(path_), before);
    EXPECT_EQ(files(), 1);
  }
  signal(SIGXFSZ, handler);
  EXPECT_FALSE(SaveCache(large, "new", folder_ / "no folder" / "cache.kvs").ok());
  ASSERT_TRUE(SaveCache(large, "new", path_).ok());
  EXPECT_EQ(ReadStateInfo(path_)->identity, "new");
}

}  // namespace
}  // namespace kvsieve::eval
