#include "kernels/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#include "kernels/copy.h"

namespace ringdp::kernels {
namespace {

#if defined(__x86_64__)
// Older clangs' __builtin_cpu_supports does not know its name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

// While it lives, this thread rounds to nearest and keeps subnormals. Several ranks may compute the same sum, and must
// not differ by a mode (torch.set_flush_denormal) that only some of their threads have.
class DefaultModes {
#if defined(__x86_64__)
 public:
  DefaultModes() : before_(_mm_getcsr()) {
    if (before_ & kModes) _mm_setcsr(before_ & ~kModes);
  }
  ~DefaultModes() {
    if (before_ & kModes) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kModes =
      0x8000 | 0x6000 | 0x0040;  // of MXCSR: flush to zero, rounding, denormals are zeros
  const unsigned before_;
#elif defined(__aarch64__)
 public:
  DefaultModes() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    if (before_ & kModes) asm volatile("msr fpcr, %0" : : "r"(before_ & ~kModes));
  }
  ~DefaultModes() {
    if (before_ & kModes) asm volatile("msr fpcr, %0" : : "r"(before_));
  }

 private:
  static constexpr uint64_t kModes = 0x1c80000;  // of FPCR: flush to zero, rounding, flush to zero in 16 bits
  uint64_t before_;
#endif
};

std::vector<InstructionSet> detect() {
  std::vector<InstructionSet> sets;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    sets.push_back({"avx512", pick_avx512_kernel, pick_avx512_tree_kernel, avx512_codec(), avx2_copy_nontemporal,
                    avx512_step_kernels(), avx2_unordered_checksum});
  }
  if (avx2) {
    sets.push_back({"avx2", pick_avx2_kernel, pick_avx2_tree_kernel, avx2_codec(), avx2_copy_nontemporal,
                    avx2_step_kernels(), avx2_unordered_checksum});
  }
#endif
#if defined(__aarch64__)
  sets.push_back({"neon", pick_scalar_kernel, pick_scalar_tree_kernel, scalar_codec(), copy, scalar_fma_step_kernels(),
                  scalar_unordered_checksum});
#else
  sets.push_back({"scalar", pick_scalar_kernel, pick_scalar_tree_kernel, scalar_codec(), copy, scalar_step_kernels(),
                  scalar_unordered_checksum});
#endif
  return sets;
}

}  // namespace

const std::vector<InstructionSet>& supported_instruction_sets() {
  static const std::vector<InstructionSet> kSets = detect();
  return kSets;
}

const char* instruction_set() { return supported_instruction_sets().front().name; }

void fold(const FoldArgs& args) {
  const DefaultModes modes;
  fold_with(supported_instruction_sets().front().pick, args);
}

void fold_tree(const TreeArgs& args) {
  const DefaultModes modes;
  fold_tree_with(supported_instruction_sets().front(), args);
}

void copy_nontemporal(const void* src, void* dst, int64_t bytes) {
  supported_instruction_sets().front().copy_nontemporal(src, dst, bytes);
}

}  // namespace ringdp::kernels
