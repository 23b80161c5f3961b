// memmove at an even speed.
//
// For long pieces glibc takes `rep movsb`, which runs at a fourteenth of its speed on some processors when source and
// destination lie a few bytes apart in their pages (glibc bug 30994; measured on Zen 4: 3.5 instead of 49 GB/s).
#pragma once
#include <cstdint>

namespace ringdp::kernels {

// `src` and `dst` may overlap, as for memmove.
void copy(const void* src, void* dst, int64_t bytes);

}  // namespace ringdp::kernels
