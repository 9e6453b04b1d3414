#include "kvsieve/targets.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

struct Target {
  std::string_view name;
  std::int64_t bit;
  bool vnni;
};

// Best first.
constexpr Target kTargets[] = {
#if HWY_ARCH_X86
    {"AVX3_VNNI", HWY_AVX3, true},
    {"AVX3", HWY_AVX3, false},
    {"AVX2", HWY_AVX2, false},
#elif HWY_ARCH_ARM
    {"NEON", HWY_NEON, false},
#endif
    {"SCALAR", HWY_SCALAR, false},
};

bool CpuHasVnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

// What the CPU can do, whatever was selected.
std::int64_t CpuTargets() {
  static const std::int64_t targets = hwy::SupportedTargets() | HWY_SCALAR;
  return targets;
}

bool g_vnni_allowed = true;

bool CpuHas(const Target& target) {
  return (CpuTargets() & target.bit) != 0 && (!target.vnni || CpuHasVnni());
}

const Target* FindActive() {
  const auto allowed = hwy::SupportedTargets() | HWY_SCALAR;
  for (const Target& target : kTargets) {
    if ((allowed & target.bit) != 0 && CpuHas(target) && (!target.vnni || g_vnni_allowed)) {
      return &target;
    }
  }
  return &kTargets[std::size(kTargets) - 1];
}

// Remembered, because Highway asks the CPU anew each time, and CPUID takes microseconds in a
// virtual machine; kernels ask once per block. Null: not known yet.
std::atomic<const Target*> g_active = nullptr;

const Target* Active() {
  const Target* active = g_active.load(std::memory_order_relaxed);
  if (active == nullptr) {
    active = FindActive();
    g_active.store(active, std::memory_order_relaxed);
  }
  return active;
}

std::string UpperCase(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return upper;
}

// Highway's names for AVX-512 are not those of the world.
std::string SuggestTarget(const std::string& name) {
  const auto names = SupportedTargets();
  const bool means_avx512 = name.starts_with("AVX512") || name.starts_with("AVX-512");
  const auto avx3 = std::find(names.begin(), names.end(), "AVX3");
  return Suggest(means_avx512 && avx3 != names.end() ? *avx3 : std::string_view(name), names);
}

}  // namespace

std::vector<std::string_view> SupportedTargets() {
  std::vector<std::string_view> names;
  for (const Target& target : kTargets) {
    if (CpuHas(target)) names.push_back(target.name);
  }
  return names;
}

std::string_view ActiveTarget() { return Active()->name; }

bool VnniActive() { return Active()->vnni; }

Status SelectTarget(std::string_view name) {
  CpuTargets();  // remember the CPU before anything is hidden
  g_active.store(nullptr, std::memory_order_relaxed);
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    g_vnni_allowed = true;
    return Status::Ok();
  }
  const std::string wanted = UpperCase(name);
  for (const Target& target : kTargets) {
    if (target.name != wanted || !CpuHas(target)) continue;
    hwy::SetSupportedTargetsForTest(target.bit);
    g_vnni_allowed = target.vnni;
    return Status::Ok();
  }
  return Status::Invalid(
      StrCat("target '", name, "' is not available on this CPU", SuggestTarget(wanted)));
}

}  // namespace kvsieve
