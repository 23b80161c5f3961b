"""Small kernels in PTX, which the driver compiles: for probes that have no toolkit.

nothing_SIZE: takes an argument of so many bytes. ping(mine, theirs, rounds, first, deadline_ns): takes turns with
another one by two 64-bit flags. put(memory, words, value): writes 32-bit words. check(memory, words, value, errors):
adds how many of them have another value to a word.
"""

from __future__ import annotations

import ctypes

from devices.driver import Driver

ARGUMENT_BYTES = (256, 4096, 12800)  # the last: a plan of 192 steps (csrc/device/kernel/work.h)
# Kernel parameters of more than 4 KiB need PTX 8.1.
_NOTHING = "\n".join(
    f".visible .entry nothing_{size}(.param .align 8 .b8 argument[{size}]) {{ ret; }}" for size in ARGUMENT_BYTES
)
_HEAD = ".version 8.1\n.target sm_80\n.address_size 64\n"
_PING = """
.visible .entry ping(.param .u64 mine_, .param .u64 theirs_, .param .u64 rounds_, .param .u64 first_,
                     .param .u64 deadline_)
{
  .reg .pred %p<4>;
  .reg .u64 %mine, %theirs, %rounds, %first, %end, %now, %turn, %seen;
  ld.param.u64 %mine, [mine_];
  ld.param.u64 %theirs, [theirs_];
  ld.param.u64 %rounds, [rounds_];
  ld.param.u64 %first, [first_];
  ld.param.u64 %end, [deadline_];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
  setp.ne.u64 %p0, %first, 0;
  mov.u64 %turn, 0;
next:
  add.u64 %turn, %turn, 1;
  @%p0 st.release.sys.u64 [%theirs], %turn;
wait:
  mov.u64 %now, %globaltimer;
  setp.gt.u64 %p1, %now, %end;
  @%p1 bra done;
  ld.acquire.sys.u64 %seen, [%mine];
  setp.lt.u64 %p2, %seen, %turn;
  @%p2 bra wait;
  @!%p0 st.release.sys.u64 [%theirs], %turn;
  setp.lt.u64 %p3, %turn, %rounds;
  @%p3 bra next;
done:
  ret;
}
"""

# One pass of all threads over the words. What is inside has %place, the address of a word, and %word, the value.
_PASS = """
.visible .entry {name}(.param .u64 memory_, .param .u64 words_, .param .u64 value_{more})
{{
  .reg .pred %p<3>;
  .reg .u32 %block, %width, %one, %word, %seen;
  .reg .u64 %memory, %words, %value, %index, %stride, %place, %errors;
  ld.param.u64 %memory, [memory_];
  ld.param.u64 %words, [words_];
  ld.param.u64 %value, [value_];
  {begin}
  cvt.u32.u64 %word, %value;
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mov.u32 %one, %tid.x;
  mad.lo.u32 %block, %block, %width, %one;
  cvt.u64.u32 %index, %block;
  mov.u32 %one, %nctaid.x;
  mul.lo.u32 %width, %width, %one;
  cvt.u64.u32 %stride, %width;
  mov.u32 %one, 1;
next:
  setp.ge.u64 %p0, %index, %words;
  @%p0 bra done;
  shl.b64 %place, %index, 2;
  add.u64 %place, %place, %memory;
  {inside}
  add.u64 %index, %index, %stride;
  bra next;
done:
  ret;
}}
"""
_PUT = _PASS.format(name="put", more="", begin="", inside="st.global.u32 [%place], %word;")
_CHECK = _PASS.format(
    name="check",
    more=", .param .u64 errors_",
    begin="ld.param.u64 %errors, [errors_];",
    inside="""ld.relaxed.sys.global.u32 %seen, [%place];
  setp.ne.u32 %p1, %seen, %word;
  @%p1 red.global.add.u32 [%errors], %one;""",
)
PTX = _HEAD + _NOTHING + _PING + _PUT + _CHECK


class Kernels:
    """Those of PTX, compiled for the current device."""

    def __init__(self, cuda: Driver) -> None:
        self._cuda, self._module = cuda, cuda.made("cuModuleLoadData", PTX.encode())
        self._found: dict[str, int] = {}

    def launch(self, name: str, stream: int, *arguments: int | ctypes.Array, blocks: int = 1, threads: int = 1) -> None:
        """Queues one. Integers are arguments of 64 bits."""
        if name not in self._found:
            self._found[name] = self._cuda.made("cuModuleGetFunction", self._module, name.encode())
        values = [ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments]
        parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._cuda.call("cuLaunchKernel", self._found[name], blocks, 1, 1, threads, 1, 1, 0, stream, parameters, None)
