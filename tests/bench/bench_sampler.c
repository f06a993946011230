// SPDX-License-Identifier: Apache-2.0
// Time of one choice from random normal logits, through the C interface; bench_sampler.py compiles and runs it.
#define _POSIX_C_SOURCE 199309L
#include <hotset/hotset.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRY(call)                                              \
  do {                                                         \
    if ((call) != HOTSET_OK) {                                 \
      fprintf(stderr, "%s: %s\n", #call, hotset_last_error()); \
      exit(1);                                                 \
    }                                                          \
  } while (0)

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double uniform(void) { return (rand() + 1.0) / (RAND_MAX + 2.0); }

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// usage: bench_sampler VOCABULARY ROUNDS DEVIATION DO_SAMPLE TOP_K TOP_P PENALTY   prints lower quartile and median, microseconds
int main(int argc, char **argv) {
  if (argc != 8) return 2;
  enum { kRows = 4 };
  const int64_t vocabulary = atoll(argv[1]), rounds = atoll(argv[2]);
  float *const logits = malloc((size_t)(kRows * vocabulary) * sizeof *logits);
  double *const times = malloc((size_t)rounds * sizeof *times);
  if (!logits || !times) return 1;
  for (int64_t i = 0; i < kRows * vocabulary; ++i)
    logits[i] = (float)(atof(argv[3]) * sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));

  const hotset_sampler_config config = {sizeof config, atoi(argv[4]), atoi(argv[5]), (float)atof(argv[6]), 0.8f, (float)atof(argv[7]), 1};
  hotset_sampler *sampler;
  TRY(hotset_sampler_create(&sampler, &config));
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t token = i * 37 % vocabulary;
    TRY(hotset_sampler_accept(sampler, &token, 1));
  }
  for (int64_t round = -20; round < rounds; ++round) {
    float *const row = logits + (round + 20) % kRows * vocabulary;
    hotset_tensor x = {sizeof x, HOTSET_FLOAT32, HOTSET_CPU, 0, 1, row, (size_t)vocabulary * sizeof *row, {vocabulary}};
    int64_t token;
    const double begin = now_us();
    TRY(hotset_sampler_next(sampler, &x, &token));
    if (round >= 0) times[round] = now_us() - begin;
  }
  qsort(times, (size_t)rounds, sizeof *times, by_value);
  printf("%.1f %.1f\n", times[rounds / 4], times[rounds / 2]);
  hotset_sampler_free(sampler);
  free(logits);
  free(times);
  return 0;
}
