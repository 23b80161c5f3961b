/* The part of NCCL's C interface that ringdp calls, declared here: no nccl.h, and no NCCL at build time.
 *
 * Unchanged since NCCL 2.13. Enums are ints there; 0 is success. Streams are cudaStream_t.
 */
#pragma once
#include <stddef.h>

typedef struct ncclComm* rd_gpu_nccl_comm;
typedef struct {
  char internal[128];
} rd_gpu_nccl_id;

enum { RD_GPU_NCCL_UINT8 = 1, RD_GPU_NCCL_IN_PROGRESS = 7 }; /* ncclUint8: payload travels as bytes; ncclInProgress */

typedef struct {
  int (*get_version)(int* version);
  int (*get_unique_id)(rd_gpu_nccl_id* id);
  int (*comm_init_rank)(rd_gpu_nccl_comm* comm, int world, rd_gpu_nccl_id id, int rank);
  int (*comm_destroy)(rd_gpu_nccl_comm comm);
  int (*comm_abort)(rd_gpu_nccl_comm comm);
  int (*comm_get_async_error)(rd_gpu_nccl_comm comm, int* error);
  const char* (*get_error_string)(int error);
  const char* (*get_last_error)(rd_gpu_nccl_comm comm);
  int (*send)(const void* from, size_t count, int type, int peer, rd_gpu_nccl_comm comm, void* stream);
  int (*recv)(void* to, size_t count, int type, int peer, rd_gpu_nccl_comm comm, void* stream);
  int (*group_start)(void);
  int (*group_end)(void);
} rd_gpu_nccl_functions;
