// A disk that fails where a test says, for LD_PRELOAD. Reads of one file fail with EIO, so many times after so many that
// succeed. Memory maps of it are mapped without access: whoever touches one is killed, as by a disk that fails below it.
// io_uring is refused, so that all reads come by here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

static char failing_path[PATH_MAX];
static atomic_long reads_to_pass, reads_to_fail;
static atomic_int armed;

// `path` ends the name of the file; an empty one disarms. `times` below 0: for ever.
void failing_disk_arm(const char* path, long pass, long times) {
  atomic_store(&armed, 0);
  snprintf(failing_path, sizeof(failing_path), "%s", path);
  atomic_store(&reads_to_pass, pass);
  atomic_store(&reads_to_fail, times < 0 ? LONG_MAX : times);
  atomic_store(&armed, path[0] != 0);
}

// How many reads are still to fail: as many as were asked for if the file was not read.
long failing_disk_left(void) { return atomic_load(&reads_to_fail); }

static int is_failing_file(int descriptor) {
  if (!atomic_load(&armed)) return 0;
  char link[64], name[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, name, sizeof(name));
  const size_t wanted = strlen(failing_path);
  return length >= (ssize_t)wanted && memcmp(name + length - wanted, failing_path, wanted) == 0;
}

static int fails(int descriptor) {
  const int cause = errno;
  const int matches = is_failing_file(descriptor);
  errno = cause;
  if (!matches || atomic_fetch_sub(&reads_to_pass, 1) > 0) return 0;
  if (atomic_fetch_sub(&reads_to_fail, 1) <= 0) {
    atomic_fetch_add(&reads_to_fail, 1);
    return 0;
  }
  errno = EIO;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t read(int descriptor, void* buffer, size_t count) {
  return fails(descriptor) ? -1 : REAL(read)(descriptor, buffer, count);
}

ssize_t pread(int descriptor, void* buffer, size_t count, off_t offset) {
  return fails(descriptor) ? -1 : REAL(pread)(descriptor, buffer, count, offset);
}

ssize_t pread64(int descriptor, void* buffer, size_t count, off64_t offset) {
  return fails(descriptor) ? -1 : REAL(pread64)(descriptor, buffer, count, offset);
}

ssize_t preadv(int descriptor, const struct iovec* parts, int count, off_t offset) {
  return fails(descriptor) ? -1 : REAL(preadv)(descriptor, parts, count, offset);
}

ssize_t preadv64(int descriptor, const struct iovec* parts, int count, off64_t offset) {
  return fails(descriptor) ? -1 : REAL(preadv64)(descriptor, parts, count, offset);
}

ssize_t preadv2(int descriptor, const struct iovec* parts, int count, off_t offset, int flags) {
  return fails(descriptor) ? -1 : REAL(preadv2)(descriptor, parts, count, offset, flags);
}

ssize_t preadv64v2(int descriptor, const struct iovec* parts, int count, off64_t offset, int flags) {
  return fails(descriptor) ? -1 : REAL(preadv64v2)(descriptor, parts, count, offset, flags);
}

void* mmap(void* address, size_t length, int access, int flags, int descriptor, off_t offset) {
  return REAL(mmap)(address, length, is_failing_file(descriptor) ? PROT_NONE : access, flags, descriptor, offset);
}

void* mmap64(void* address, size_t length, int access, int flags, int descriptor, off64_t offset) {
  return REAL(mmap64)(address, length, is_failing_file(descriptor) ? PROT_NONE : access, flags, descriptor, offset);
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
