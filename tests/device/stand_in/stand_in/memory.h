// Locks on parts of a file, which end with the descriptor that holds them, also when its process is killed.
#pragma once
#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace stand_in {

inline struct flock part_of_file(short type, size_t offset, size_t bytes) {
  struct flock part {};
  part.l_type = type;
  part.l_whence = SEEK_SET;
  part.l_start = static_cast<off_t>(offset);
  part.l_len = static_cast<off_t>(bytes);
  return part;
}

inline bool lock_part(int fd, size_t offset, size_t bytes) {
  struct flock part = part_of_file(F_RDLCK, offset, bytes);
  return fcntl(fd, F_OFD_SETLK, &part) == 0;
}

// Whether somebody else holds a lock on any of it.
inline bool others_lock(int fd, size_t offset, size_t bytes) {
  struct flock part = part_of_file(F_WRLCK, offset, bytes);
  return fcntl(fd, F_OFD_GETLK, &part) == 0 && part.l_type != F_UNLCK;
}

// A device's memory: a file in memory, of which every allocation is a part, so that other processes can map it.
//
// Allocations that are neighbours on the device have neighbouring addresses, as with CUDA. Every one holds garbage at
// first. A handle names the process and its descriptor, by which /proc gives the file
// to a process of the same user. Importers hold a lock on their part, so freeing what is still imported is seen, and
// ends with a killed importer. Exporters hold one behind the end: no device reaches the memory of one that was killed.
// Thread-safe; throws Refusal.

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

// Whether some device reaches [memory, memory + bytes): what is allocated, imported or added here.
bool is_device_memory(const void* memory, size_t bytes);
// As CUDA does before it copies: refuses what begins in an allocation, or in pinned memory, and reaches beyond it.
void check_within_one(const void* memory, size_t bytes);
// For what is mapped elsewhere (virtual memory, host memory): no device reaches it, until it is let.
void add_range(void* memory, size_t bytes);
void remove_range(void* memory);
void let_reach(void* memory, int device);
void let_all_reach(void* memory);
void let_reach_while_lent(void* memory, int device, int fd);  // until nobody else locks the end of that file
void mark_as_peers(void* memory);                             // of another process
bool is_peers(const void* memory);
void give_to(int device, void* memory);  // the device reaches it, and so do those that reach all of the device's
// From now on `device` reaches all that was and is given to `other`. False: it did already.
bool let_reach_peer(int device, int other);

// A thread of a kernel begins, on that device; reads or writes there. What its device does not reach is a fault, of
// which every call that names the device tells from then on: the process has lost it.
void enter_kernel(int device);
void touch(const void* memory, size_t bytes);
bool is_lost(int device);

// Host memory that devices map, at an address of their own: who gives a device the host's is found out.
//
// Private memory that is registered has one address only. Thread-safe; throws Refusal.

void* allocate_host(size_t bytes);
void free_host(void* memory);  // waits for all devices
void register_host(void* memory, size_t bytes);
void unregister_host(void* memory);
void* device_address_of(void* memory);  // of any byte
size_t pinned_bytes();                  // of allocate_host

// How much of what this process has taken it has not given back: allocations, imports and host memory; of virtual
// memory handles, reservations and mappings.
size_t held_parts();
size_t held_virtually();

}  // namespace stand_in
