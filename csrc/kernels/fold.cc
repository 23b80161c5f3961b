#include "kernels/fold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/bytes.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

constexpr int64_t kCopyBlockBytes = 32 << 10;  // one source for several destinations stays in cache

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kInvalidArgument, "fold: " + what); }

void check(const FoldArgs& args) {
  if (args.count < 0) refuse("a count of " + std::to_string(args.count) + " elements; it must be 0 or more");
  if (args.n_srcs < 1) refuse(std::to_string(args.n_srcs) + " sources; at least one is needed");
  if (args.n_dsts < 1) refuse(std::to_string(args.n_dsts) + " destinations; at least one is needed");
  if (!can_reduce(args.dtype, args.op)) {
    refuse(std::string(name_of(args.op)) + " has no meaning on " + name_of(args.dtype));
  }
  if (args.divisor != 0 && !can_reduce(args.dtype, ReduceOp::kAvg)) {
    refuse("a divisor of " + std::to_string(args.divisor) + " for " + name_of(args.dtype) +
           "; it cannot be averaged, use SUM");
  }
  if (args.divisor != 0 && is_whole(args.dtype) &&
      !(args.divisor >= 1 && args.divisor <= INT32_MAX && args.divisor == std::floor(args.divisor))) {
    refuse("a divisor of " + std::to_string(args.divisor) + " for " + name_of(args.dtype) +
           "; it must be a number of ranks");
  }
  if (args.count == 0) return;
  for (int i = 0; i < args.n_srcs; ++i) {
    if (args.srcs[i] == nullptr) refuse("source " + std::to_string(i) + " is null");
  }
  for (int i = 0; i < args.n_dsts; ++i) {
    if (args.dsts[i] == nullptr) refuse("destination " + std::to_string(i) + " is null");
  }
}

// The same fold with the dtype of a kernel.
FoldArgs in_numbers(FoldArgs args) {
  args = in_reals(args);
  if (args.dtype == DType::kBool) {
    args.dtype = DType::kU8;  // of values 0 and 1
    if (args.op == ReduceOp::kSum) args.op = ReduceOp::kMax;
    if (args.op == ReduceOp::kProduct) args.op = ReduceOp::kMin;
  }
  return args;
}

const char* at_element(const void* buffer, int64_t index, int64_t size) {
  return static_cast<const char*>(buffer) + index * size;
}
char* at_element(void* buffer, int64_t index, int64_t size) { return static_cast<char*>(buffer) + index * size; }

// Calls a kernel, which needs a multiple of kTile elements, for any number of them.
struct Step {
  const void* srcs[kMaxToAll];
  int n_srcs = 0;
  void* dsts[kMaxToAll];
  int n_dsts = 0;
  int64_t first_size, src_size, dst_size;  // bytes of an element of srcs[0], of the other sources, of the dsts

  void run(Kernel kernel, int64_t count, double divisor) const {
    if (count % kTile == 0) {
      kernel(srcs, dsts, count, divisor);
    } else {
      run_padded(kernel, count, divisor);
    }
  }

 private:
  // Zeros fill the tile up, so the tail takes the same instructions, and gets the same bits, as the body.
  void run_padded(Kernel kernel, int64_t count, double divisor) const {
    alignas(64) char in[kMaxToAll][kTile * kMaxElementBytes];
    alignas(64) char out[kMaxToAll][kTile * kMaxElementBytes];
    const void* padded[kMaxToAll];
    void* results[kMaxToAll];
    for (int k = 0; k < n_srcs; ++k) {
      const int64_t size = k == 0 ? first_size : src_size;
      std::memcpy(in[k], srcs[k], count * size);
      std::memset(in[k] + count * size, 0, (kTile - count) * size);
      padded[k] = in[k];
    }
    for (int k = 0; k < n_dsts; ++k) results[k] = out[k];
    kernel(padded, results, kTile, divisor);
    for (int k = 0; k < n_dsts; ++k) std::memcpy(dsts[k], out[k], count * dst_size);
  }
};

// Splits a fold into kernel calls: more sources than a kernel takes meet in a block of partial sums, and more
// destinations than a kernel writes are copied from the first one while it is in cache.
class Folder {
 public:
  Folder(KernelPicker pick, const FoldArgs& args)
      : pick_(pick),
        args_(args),
        size_(size_of(args.dtype)),
        wide_size_(size_of(wide_of(args.dtype))),
        to_all_(stores_to_all(args.op, args.n_srcs, args.n_dsts, args.wide_src, args.wide_dst)),
        max_srcs_(to_all_ ? args.n_srcs : max_kernel_srcs(args.op)),
        kernel_dsts_(to_all_ ? args.n_dsts : kernel_dsts(args.op, args.n_dsts)) {}

  void run() {
    const bool one_call = args_.n_srcs <= max_srcs_ && args_.n_dsts == kernel_dsts_;
    const int64_t longest = one_call ? args_.count : kBlockBytes / wide_size_;
    for (int64_t begin = 0, count; begin < args_.count; begin += count) {
      count = std::min(longest, args_.count - begin);
      if (count > kTile) count -= count % kTile;
      fold_block(begin, count);
      copy_to_others(begin, count);
    }
  }

 private:
  int64_t dst_size() const { return args_.wide_dst ? wide_size_ : size_; }

  void fold_block(int64_t begin, int64_t count) {
    int taken = 0;
    while (taken < args_.n_srcs) {
      const bool first = taken == 0;
      Step step;
      step.first_size = !first || args_.wide_src ? wide_size_ : size_;
      step.src_size = size_;
      if (!first) step.srcs[step.n_srcs++] = partial_;
      while (step.n_srcs < max_srcs_ && taken < args_.n_srcs) {
        step.srcs[step.n_srcs] = at_element(args_.srcs[taken], begin, taken == 0 ? step.first_size : size_);
        ++step.n_srcs;
        ++taken;
      }
      const bool last = taken == args_.n_srcs;
      aim(step, last, begin);
      const bool divide = last && args_.divisor != 0;
      const KernelKey key{args_.dtype, args_.op,   !first || args_.wide_src, !last || args_.wide_dst, divide,
                          step.n_srcs, step.n_dsts};
      step.run(pick_(key), count, args_.divisor);
    }
  }

  void aim(Step& step, bool last, int64_t begin) {
    step.dst_size = last ? dst_size() : wide_size_;
    step.n_dsts = last ? kernel_dsts_ : 1;
    step.dsts[0] = partial_;
    for (int k = 0; last && k < kernel_dsts_; ++k) step.dsts[k] = at_element(args_.dsts[k], begin, dst_size());
  }

  void copy_to_others(int64_t begin, int64_t count) const {
    for (int k = kernel_dsts_; k < args_.n_dsts; ++k) {
      if (args_.dsts[k] == args_.dsts[0]) continue;
      std::memcpy(at_element(args_.dsts[k], begin, dst_size()), at_element(args_.dsts[0], begin, dst_size()),
                  count * dst_size());
    }
  }

  const KernelPicker pick_;
  const FoldArgs& args_;
  const int64_t size_, wide_size_;
  const bool to_all_;
  const int max_srcs_, kernel_dsts_;
  alignas(64) char partial_[kBlockBytes];
};

bool is_copy(const FoldArgs& args) {
  const bool same_width = args.wide_src == args.wide_dst || wide_of(args.dtype) == args.dtype;
  return args.n_srcs == 1 && args.divisor == 0 && same_width;
}

void copy(const FoldArgs& args) {
  const int64_t bytes = checked_mul(args.count, size_of(args.wide_src ? wide_of(args.dtype) : args.dtype));
  const int64_t longest = args.n_dsts == 1 ? bytes : kCopyBlockBytes;
  for (int64_t begin = 0; begin < bytes; begin += longest) {
    for (int k = 0; k < args.n_dsts; ++k) {
      if (args.dsts[k] == args.srcs[0]) continue;
      std::memcpy(at_element(args.dsts[k], begin, 1), at_element(args.srcs[0], begin, 1),
                  std::min(longest, bytes - begin));
    }
  }
}

template <class T>
void divide(void* numbers, int64_t count, int64_t by) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  auto* at = static_cast<char*>(numbers);
  for (int64_t i = 0; i < count; ++i, at += sizeof(T)) {
    T number;
    std::memcpy(&number, at, sizeof number);
    number = static_cast<T>(static_cast<Wide>(number) / static_cast<Wide>(by));
    std::memcpy(at, &number, sizeof number);
  }
}

// The mean of whole numbers, as NCCL has it: the sum in their own type, divided toward zero.
void fold_whole_numbers(KernelPicker pick, FoldArgs args) {
  const FoldArgs asked = args;
  args.divisor = 0;
  args.n_dsts = 1;
  fold_with(pick, args);
  visit_dtype(asked.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) divide<T>(asked.dsts[0], asked.count, static_cast<int64_t>(asked.divisor));
  });
  args.srcs = asked.dsts;
  args.n_srcs = 1;
  args.dsts = asked.dsts + 1;
  args.n_dsts = asked.n_dsts - 1;
  if (args.n_dsts > 0) copy(args);
}

}  // namespace

void fold_with(KernelPicker pick, const FoldArgs& asked) {
  check(asked);
  if (asked.count == 0) return;
  if (asked.divisor != 0 && is_whole(asked.dtype)) return fold_whole_numbers(pick, asked);
  const FoldArgs args = in_numbers(asked);
  if (is_copy(args)) {
    copy(args);
  } else {
    Folder(pick, args).run();
  }
}

}  // namespace ringdp::kernels
