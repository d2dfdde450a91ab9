// A disk that fails where it is told to, for LD_PRELOAD. Of the operations on files whose names have some part, some
// succeed, then so many fail with an error, or are done by half. Memory maps of such files are mapped without access
// while reads fail: whoever touches one is killed, as by a disk that fails below it. io_uring is refused, so that all
// reads come by here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

enum operation { READ = 1, WRITE = 2, SYNC = 4, RENAME = 8, CREATE = 16 };
enum { HALF = 0 };  // in place of an error: half of what was asked is done

static char part_of_path[PATH_MAX];
static atomic_int armed_operations, error_to_give;
static atomic_long to_pass, to_fail, matched;

// `part` of the file's name; an empty one disarms. `operations`: those to count, or'ed. `times` below 0: for ever.
void failing_disk_arm(const char* part, int operations, int error, long pass, long times) {
  atomic_store(&armed_operations, 0);
  snprintf(part_of_path, sizeof(part_of_path), "%s", part);
  atomic_store(&error_to_give, error);
  atomic_store(&to_pass, pass);
  atomic_store(&to_fail, times < 0 ? LONG_MAX : times);
  atomic_store(&matched, 0);
  atomic_store(&armed_operations, part[0] ? operations : 0);
}

// How many operations there were since then.
long failing_disk_matched(void) { return atomic_load(&matched); }

static int is_path(enum operation operation, const char* path) {
  return (atomic_load(&armed_operations) & operation) && strstr(path, part_of_path) != NULL;
}

static int is_descriptor(enum operation operation, int descriptor) {
  if (!(atomic_load(&armed_operations) & operation)) return 0;
  const int cause = errno;
  char link[64], name[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, name, sizeof(name) - 1);
  errno = cause;
  name[length < 0 ? 0 : length] = 0;
  return is_path(operation, name);
}

// Whether this operation, which is on such a file, is to fail.
static int fails(int matches) {
  if (!matches) return 0;
  atomic_fetch_add(&matched, 1);
  if (atomic_fetch_sub(&to_pass, 1) > 0) return 0;
  if (atomic_fetch_sub(&to_fail, 1) <= 0) {
    atomic_fetch_add(&to_fail, 1);
    return 0;
  }
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define HALF_OF(count) ((count) > 1 ? (count) / 2 : (count))
// Half of a direct read or write ends where a block ends; a read that does not has met the end of the file.
#define BLOCKS_OF_HALF(count) ((count) > 8192 ? (count) / 8192 * 4096 : (count))

// Fails with the error, or does half of it: `whole` and `half` are the two calls.
#define GIVE(matches, whole, half)                  \
  if (!fails(matches)) return whole;                \
  if (atomic_load(&error_to_give) == HALF) return half; \
  errno = atomic_load(&error_to_give);              \
  return -1

ssize_t read(int descriptor, void* buffer, size_t count) {
  GIVE(is_descriptor(READ, descriptor), REAL(read)(descriptor, buffer, count),
       REAL(read)(descriptor, buffer, HALF_OF(count)));
}

#define POSITIONED_READ(name, offset_type)                                         \
  ssize_t name(int descriptor, void* buffer, size_t count, offset_type offset) {   \
    GIVE(is_descriptor(READ, descriptor), REAL(name)(descriptor, buffer, count, offset), \
         REAL(name)(descriptor, buffer, BLOCKS_OF_HALF(count), offset));             \
  }
POSITIONED_READ(pread, off_t)
POSITIONED_READ(pread64, off64_t)

#define VECTOR_READ(name, offset_type)                                                      \
  ssize_t name(int descriptor, const struct iovec* parts, int count, offset_type offset) {  \
    GIVE(is_descriptor(READ, descriptor), REAL(name)(descriptor, parts, count, offset),     \
         REAL(pread64)(descriptor, parts[0].iov_base, HALF_OF(parts[0].iov_len), offset));  \
  }
VECTOR_READ(preadv, off_t)
VECTOR_READ(preadv64, off64_t)

#define FLAGGED_VECTOR_READ(name, offset_type)                                                        \
  ssize_t name(int descriptor, const struct iovec* parts, int count, offset_type offset, int flags) { \
    GIVE(is_descriptor(READ, descriptor), REAL(name)(descriptor, parts, count, offset, flags),        \
         REAL(pread64)(descriptor, parts[0].iov_base, HALF_OF(parts[0].iov_len), offset));            \
  }
FLAGGED_VECTOR_READ(preadv2, off_t)
FLAGGED_VECTOR_READ(preadv64v2, off64_t)

ssize_t write(int descriptor, const void* buffer, size_t count) {
  GIVE(is_descriptor(WRITE, descriptor), REAL(write)(descriptor, buffer, count),
       REAL(write)(descriptor, buffer, HALF_OF(count)));
}

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  GIVE(is_descriptor(WRITE, descriptor), REAL(writev)(descriptor, parts, count),
       REAL(write)(descriptor, parts[0].iov_base, HALF_OF(parts[0].iov_len)));
}


#define POSITIONED_WRITE(name, offset_type)                                               \
  ssize_t name(int descriptor, const void* buffer, size_t count, offset_type offset) {    \
    GIVE(is_descriptor(WRITE, descriptor), REAL(name)(descriptor, buffer, count, offset), \
         REAL(name)(descriptor, buffer, BLOCKS_OF_HALF(count), offset)); \
  }
POSITIONED_WRITE(pwrite, off_t)
POSITIONED_WRITE(pwrite64, off64_t)

// NumPy writes arrays so. It is done whole or not at all.
size_t fwrite(const void* data, size_t size, size_t count, FILE* file) {
  if (!is_descriptor(WRITE, fileno(file)) || !fails(1)) return REAL(fwrite)(data, size, count, file);
  if (atomic_load(&error_to_give) == HALF || atomic_load(&error_to_give) == EINTR) {
    return REAL(fwrite)(data, size, count, file);
  }
  errno = atomic_load(&error_to_give);
  return 0;
}

#define WITHOUT_HALVES(matches, call) \
  if (!fails(matches)) return call;   \
  if (atomic_load(&error_to_give) == HALF) return call; \
  errno = atomic_load(&error_to_give); \
  return -1

int fsync(int descriptor) { WITHOUT_HALVES(is_descriptor(SYNC, descriptor), REAL(fsync)(descriptor)); }
int fdatasync(int descriptor) { WITHOUT_HALVES(is_descriptor(SYNC, descriptor), REAL(fdatasync)(descriptor)); }
int rename(const char* from, const char* to) {
  WITHOUT_HALVES(is_path(RENAME, from) || is_path(RENAME, to), REAL(rename)(from, to));
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  WITHOUT_HALVES(is_path(RENAME, from) || is_path(RENAME, to), REAL(renameat)(from_folder, from, to_folder, to));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  WITHOUT_HALVES(is_path(RENAME, from) || is_path(RENAME, to),
                 REAL(renameat2)(from_folder, from, to_folder, to, flags));
}

#define OPEN(name)                                                                                              \
  int name(const char* path, int flags, ...) {                                                                  \
    va_list rest;                                                                                               \
    va_start(rest, flags);                                                                                      \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                               \
    va_end(rest);                                                                                               \
    WITHOUT_HALVES((flags & O_CREAT) && is_path(CREATE, path), REAL(name)(path, flags, mode));                  \
  }
OPEN(open)
OPEN(open64)

static int access_of(int descriptor, int access) {
  const int denied = descriptor >= 0 && fails(is_descriptor(READ, descriptor));  // a map is a read to come
  return denied && atomic_load(&error_to_give) != HALF ? PROT_NONE : access;
}

void* mmap(void* address, size_t length, int access, int flags, int descriptor, off_t offset) {
  return REAL(mmap)(address, length, access_of(descriptor, access), flags, descriptor, offset);
}

void* mmap64(void* address, size_t length, int access, int flags, int descriptor, off64_t offset) {
  return REAL(mmap64)(address, length, access_of(descriptor, access), flags, descriptor, offset);
}

__attribute__((constructor)) static void refuse_io_uring(void) {
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 425, 0, 1),  // io_uring_setup, on every architecture
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}
