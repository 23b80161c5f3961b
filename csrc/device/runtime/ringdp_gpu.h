/* The C interface of libringdp_gpu.so: memory that ranks share, and plans that run on it. No torch, C types only.
 *
 * Functions return 0, or an error code, with a message in rd_gpu_error() of the calling thread.
 * Pointers are device memory unless their name says host. Streams are cudaStream_t, of the calling thread's current
 * device. Nothing here synchronises a device, except that memory is zero when an allocation returns, and freeing may
 * wait as cudaFree does. Thread-safe.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "device/runtime/nccl_functions.h"

extern "C" {

enum { RD_GPU_ABI = 9 };
int rd_gpu_abi(void);
const char* rd_gpu_error(void);

/* Without a driver or a device: 0, *count is 0, and rd_gpu_error() says why. */
int rd_gpu_count(int* count);

typedef struct {
  char name[64];
  unsigned char uuid[16];
  int32_t multiprocessors, major, minor;
  int32_t waits_on_streams, shares_fds; /* 1: can */
  uint64_t memory_bytes;
  int32_t mig, mps; /* 1: an instance of a partitioned GPU, with a uuid of its own; shared by processes through MPS */
} rd_gpu_device;
int rd_gpu_describe(int device, rd_gpu_device* out);

/* Memory that other processes can map; zero-filled, rounded up to multiples of 2 MiB. RD_GPU_SHARE_FD: by file
 * descriptor; importers may still access it when this process has been killed. RD_GPU_SHARE_AUTO: by legacy IPC if the
 * driver allows it, else by file descriptor; for when sharing descriptors failed. Freeing waits for the device only as
 * the driver likes: what uses the memory must have ended. */
enum { RD_GPU_SHARE_AUTO = 0, RD_GPU_SHARE_FD = 1 };
int rd_gpu_alloc(int device, size_t bytes, int sharing, void** out);
int rd_gpu_free(void* memory); /* its first byte */

/* A handle is sent as bytes; with `needs_fd` a descriptor goes with it over a unix socket. The caller owns descriptors:
 * *fd is new, or -1 where none is needed, and importing does not close it. Importing an allocation twice, or in its own
 * process, counts references to one mapping; importers must close before the exporter frees. Kernels on `device` may
 * access what it has imported, also where that is memory of another device of this process. */
typedef struct {
  unsigned char key[64]; /* of the allocation */
  uint64_t bytes;        /* of the allocation */
  uint64_t offset;       /* of the exported byte in it */
  int32_t needs_fd;
} rd_gpu_handle;
int rd_gpu_export(void* memory, rd_gpu_handle* out, int* fd);
int rd_gpu_import(int device, const rd_gpu_handle* handle, int fd, void** out);
int rd_gpu_unimport(void* memory);

/* Pinned host memory that the device maps at *device_address; zero-filled. */
int rd_gpu_host_alloc(size_t bytes, void** host, void** device_address);
int rd_gpu_host_free(void* host);
int rd_gpu_host_map(void* host, size_t bytes, void** device_address); /* memory that exists, e.g. shared by processes */
int rd_gpu_host_unmap(void* host);

/* Copies between devices, or from or to memory of rd_gpu_host_alloc, and waits for that alone: on a stream of its own,
 * of the device. RD_GPU_LATE: it has not ended after 5 seconds, as behind an IOMMU, and may never. Until it does, what
 * this process frees or unmaps stays, as the driver would wait for the copy. */
enum { RD_GPU_LATE = -2 };
int rd_gpu_copy_now(int device, void* to, const void* from, size_t bytes);

/* A new stream of the device, of the highest priority, for which the default stream does not wait. It lasts until the
 * process ends. */
int rd_gpu_stream(int device, void** out);

/* Swaps the thread's capture mode. Inside RD_GPU_CAPTURE_RELAXED it may query events while another thread captures a
 * graph, which that would otherwise break. */
enum { RD_GPU_CAPTURE_RELAXED = 2 };
int rd_gpu_swap_capture_mode(int* mode);

/* In the order of a stream. */
int rd_gpu_copy(void* to, const void* from, size_t bytes, void* stream); /* any of host (pinned) and device */
int rd_gpu_call(void* stream, void (*call)(void*), void* argument);      /* on a host thread; must not call CUDA */
/* Makes the stream wait until the word, in memory of rd_gpu_host_alloc, is at least `value`, compared cyclically. */
int rd_gpu_await(const uint32_t* host_word, uint32_t value, void* stream);
/* Writes the word, in such memory, when the stream gets there. */
int rd_gpu_write(uint32_t* host_word, uint32_t value, void* stream);
int rd_gpu_is_capturing(void* stream, int* out); /* 1: it records a graph instead of running */

/* `work`: a ringdp::gpu::Work (device/kernel/work.h), copied. element: a ringdp::DType. reduce: a ringdp::ReduceOp. Any
 * type is moved; sums (SUM, and AVG by Work::divisor) are of float32, float16, bfloat16, float64, int32 and int64.
 * RD_GPU_SPIN: one kernel, whose waits poll; the blocks of all ranks must be on their devices at once. RD_GPU_STREAM:
 * waits and posts are operations of the stream, between short kernels; flags lie in host memory that all ranks map. */
enum { RD_GPU_SPIN = 0, RD_GPU_STREAM = 1 };
int rd_gpu_run(const void* work, size_t work_bytes, int element, int reduce, int executor, void* stream);

/* Sets *out to 1 when rd_gpu_run has a kernel for this reduction, else to 0. Moves always have one. */
int rd_gpu_reduces(int element, int reduce, int* out);

/* In the order of the stream: if *abort (host memory, at its device address) is not 0, fills the memory with bytes that
 * are NaN in every floating type. */
int rd_gpu_poison(void* memory, size_t bytes, const uint32_t* abort, void* stream);
/* The same, and else copies the bytes from `from`, which they do not overlap: of few bytes in one launch. */
int rd_gpu_deliver(void* memory, const void* from, size_t bytes, const uint32_t* abort, void* stream);
/* Words that ranks without common memory send each other, each in the first 4 of 16 aligned bytes of device memory: if
 * one of `count` at `received` is not 0, sets *abort (likewise) to 1; if that is not 0, fills the 16 bytes at `own`
 * with ones. */
int rd_gpu_pass_abort_on(uint32_t* abort, void* own, const void* received, int count, void* stream);

/* `work`: a ringdp::gpu::AdamWork (device/kernel/work.h), copied. It does not synchronise: put barriers before and
 * after. */
int rd_gpu_adam_step(const void* work, size_t work_bytes, void* stream);

/* `work`: a ringdp::gpu::CodecWork (device/kernel/work.h), copied: encodes to a wire type or decodes, with the
 * CPU's bits, in this rank's own memory. It does not synchronise. */
int rd_gpu_recode(const void* work, size_t work_bytes, void* stream);

/* Registers, spilled bytes and blocks per multiprocessor of the kernels on this device, one line per kind. This loads
 * all kernels; call it before the first SPIN run, because loading one later would wait for kernels that poll. */
int rd_gpu_kernels(char* text, size_t bytes);

/* The NCCL that this process has loaded, else the library at `path`, or with null or "" by its name. Where there is
 * none: 0, *version is 0, *functions null, and rd_gpu_error() says what was tried. */
int rd_gpu_nccl(const char* path, int* version, const rd_gpu_nccl_functions** functions);
}
