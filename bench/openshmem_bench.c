/* What bench/symm_bench.cc measures, in OpenSHMEM: oshcc openshmem_bench.c, oshrun -n 2 a.out [rounds]. */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

int main(int argc, char **argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 100000;
  const size_t bytes = 1 << 20;
  shmem_init();
  const int me = shmem_my_pe();
  long *words = shmem_calloc(16, sizeof(long));
  char *block = shmem_calloc(1, bytes);
  char *source = malloc(bytes);
  memset(source, 1, bytes);
  shmem_barrier_all();
  double begin = now_us();
  if (me == 0) {
    for (int i = 0; i < rounds; ++i) (void)shmem_long_atomic_fetch_add(&words[0], 1, 1);
    printf("%-24s %9.3f us\n", "fetch_add", (now_us() - begin) / rounds);
    for (int i = 0; i < 10; ++i) shmem_putmem(block, source, bytes, 1);
    const int many = rounds / 100 + 1;
    begin = now_us();
    for (int i = 0; i < many; ++i) {
      shmem_putmem(block, source, bytes, 1);
      shmem_quiet();
    }
    printf("%-24s %9.3f us\n", "put 1 MiB + quiet", (now_us() - begin) / many);
  }
  shmem_barrier_all();
  begin = now_us();
  for (int i = 1; i <= rounds; ++i) {
    if (me == 0) shmem_long_p(&words[8], i, 1);
    shmem_long_wait_until(&words[8], SHMEM_CMP_GE, i);
    if (me == 1) shmem_long_p(&words[8], i, 0);
  }
  if (me == 0) printf("%-24s %9.3f us\n", "set + wait, round trip", (now_us() - begin) / rounds);
  begin = now_us();
  for (int i = 0; i < rounds; ++i) shmem_barrier_all();
  if (me == 0) printf("%-24s %9.3f us\n", "barrier", (now_us() - begin) / rounds);
  shmem_finalize();
  return 0;
}
