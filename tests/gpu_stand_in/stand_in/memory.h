// A device's memory: a file in memory, of which every allocation is a part, so that other processes can map it.
//
// Every allocation holds garbage at first. A handle names the process and its descriptor, by which /proc gives the file
// to a process of the same user. Importers hold a lock on their part, so freeing what is still imported is seen, and
// ends with a killed importer. Thread-safe; throws Refusal.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace stand_in {

void* allocate(int device, size_t bytes);
void free_memory(void* memory);  // waits for the device; its first byte

struct IpcHandle {
  uint64_t magic, bytes, offset, inode;
  pid_t process;
  int fd;
};
IpcHandle export_memory(void* memory);  // its first byte
void* import_memory(int device, const IpcHandle& handle);
void close_import(void* memory);

// Whether devices reach [memory, memory + bytes): what is allocated, imported or added here.
bool is_device_memory(const void* memory, size_t bytes);
// For what is mapped elsewhere (virtual memory, host memory).
void add_reachable(void* memory, size_t bytes);
void remove_reachable(void* memory);

}  // namespace stand_in
