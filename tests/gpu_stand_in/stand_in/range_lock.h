// Locks on parts of a file, which end with the descriptor that holds them, also when its process is killed.
#pragma once
#include <fcntl.h>

#include <cstddef>

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

}  // namespace stand_in
