// Changes what the kernel's io_uring answers to reads, when it is preloaded:
// RING_ANSWER says to what, RING_TIMES how often (-1 for ever). The rings are
// found where io_uring_setup and mmap put them. Of programs with a thread per
// ring.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kRings = 1024, kSlots = 4096 };

static struct {
  struct io_uring_params params;
  char *ring;
  struct io_uring_sqe *entries;
  unsigned answered;                 // completions that were looked at
  struct io_uring_sqe asked[kSlots]; // by user_data: what the program wants
} *rings[kRings];

static long left(void) {
  static long times = -2;
  if (times == -2)
    times = atol(getenv("RING_TIMES"));
  return times;
}

static int takes(void) {
  static long done = 0;
  return left() < 0 || done++ < left();
}

static unsigned *word(int ring, unsigned offset) {
  return (unsigned *)(rings[ring]->ring + offset);
}

static void change(struct io_uring_cqe *answer,
                   const struct io_uring_sqe *asked) {
  const char *how = getenv("RING_ANSWER");
  if (!strcmp(how, "half") &&
      answer->res >= 8192) { // whole sectors, as if interrupted
    answer->res = answer->res / 2 / 4096 * 4096;
    memset((char *)asked->addr + answer->res, 0xee, asked->len - answer->res);
  } else if (!strcmp(how, "odd") && answer->res > 4096) {
    answer->res -= 100;
  } else if (!strcmp(how, "nothing")) {
    answer->res = 0;
  } else if (!strcmp(how, "garbage") &&
             answer->res > 0) { // of full length, and wrong
    ((char *)asked->addr)[answer->res / 2] ^= 4;
  } else if (how[0] == '-') {
    memset((char *)asked->addr, 0xee, asked->len);
    answer->res = atoi(how);
  }
}

void *mmap(void *where, size_t bytes, int protection, int flags, int file,
           off_t offset) {
  static void *(*real)(void *, size_t, int, int, int, off_t);
  if (!real)
    real = dlsym(RTLD_NEXT, "mmap");
  void *found = real(where, bytes, protection, flags, file, offset);
  if (file >= 0 && file < kRings && rings[file] && found != MAP_FAILED) {
    if (offset == (off_t)IORING_OFF_SQ_RING)
      rings[file]->ring = found;
    if (offset == (off_t)IORING_OFF_SQES)
      rings[file]->entries = found;
  }
  return found;
}

void *mmap64(void *where, size_t bytes, int protection, int flags, int file,
             off_t offset) {
  return mmap(where, bytes, protection, flags, file, offset);
}

long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real)
    real = dlsym(RTLD_NEXT, "syscall");
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; ++i)
    a[i] = va_arg(list, long);
  va_end(list);
  if (number == __NR_io_uring_enter && rings[a[0]]) {
    const int ring = (int)a[0];
    const struct io_uring_params *at = &rings[ring]->params;
    for (unsigned i = *word(ring, at->sq_off.head);
         i != *word(ring, at->sq_off.tail); ++i) {
      const struct io_uring_sqe *entry =
          &rings[ring]->entries[i & (at->sq_entries - 1)];
      rings[ring]->asked[entry->user_data % kSlots] = *entry;
    }
  }
  const long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == __NR_io_uring_setup && result >= 0 && result < kRings) {
    if (!rings[result])
      rings[result] = malloc(sizeof(*rings[result]));
    memset(rings[result], 0, sizeof(*rings[result]));
    rings[result]->params = *(const struct io_uring_params *)a[1];
  }
  if (number == __NR_io_uring_enter && rings[a[0]]) {
    const int saved = errno, ring = (int)a[0];
    const struct io_uring_params *at = &rings[ring]->params;
    struct io_uring_cqe *answers =
        (struct io_uring_cqe *)(rings[ring]->ring + at->cq_off.cqes);
    const unsigned end =
        __atomic_load_n(word(ring, at->cq_off.tail), __ATOMIC_ACQUIRE);
    // What the program took without asking the kernel is its own by now.
    const unsigned taken = *word(ring, at->cq_off.head);
    if ((int)(taken - rings[ring]->answered) > 0)
      rings[ring]->answered = taken;
    for (; rings[ring]->answered != end; ++rings[ring]->answered) {
      struct io_uring_cqe *answer =
          &answers[rings[ring]->answered & (at->cq_entries - 1)];
      const struct io_uring_sqe *asked =
          &rings[ring]->asked[answer->user_data % kSlots];
      if (asked->opcode != IORING_OP_NOP && takes())
        change(answer, asked);
    }
    errno = saved;
  }
  return result;
}
