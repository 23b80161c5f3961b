// memmove without its slow cases.
//
// For long copies glibc uses `rep movsb`, which runs at a fourteenth of its speed on some processors when source and
// destination lie a few bytes apart in their pages (glibc bug 30994; measured on Zen 4: 3.5 instead of 49 GB/s).
#pragma once
#include <cstdint>

namespace ringdp::kernels {

// `src` and `dst` may overlap, as for memmove.
void copy(const void* src, void* dst, int64_t bytes);

// The same with non-temporal stores, where the processor has them, for memory that does not overlap and is larger than
// the caches. Visible to other threads when it returns.
void copy_nontemporal(const void* src, void* dst, int64_t bytes);

}  // namespace ringdp::kernels
