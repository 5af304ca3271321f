/* SPDX-License-Identifier: MIT
 *
 * Samples in; medians, spreads and ratios out: as a table, as JSON, or as lines
 * of label, metric, unit and value for the driver.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

static struct bench_series *series_of(struct bench *b, const char *label, const char *metric)
{
	struct bench_series *s;

	for (unsigned i = 0; i < b->n_series; i++) {
		s = &b->series[i];
		if (!strcmp(s->label, label) && !strcmp(s->metric, metric))
			return s;
	}
	if (b->n_series == BENCH_MAX_SERIES)
		return NULL;
	s = &b->series[b->n_series++];
	snprintf(s->label, sizeof(s->label), "%s", label);
	s->metric = metric;
	return s;
}

int bench_add(struct bench *b, const char *label, const char *metric, const char *unit, double v)
{
	struct bench_series *s = series_of(b, label, metric);
	double *more;

	if (!s)
		return -ENOSPC;
	s->unit = unit;
	if (s->n == s->cap) {
		more = realloc(s->v, (s->cap * 2 + 8) * sizeof(*s->v));
		if (!more)
			return -ENOMEM;
		s->v = more;
		s->cap = s->cap * 2 + 8;
	}
	s->v[s->n++] = v;
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A copy of the samples, smallest first; the caller frees it. */
static double *sorted(const double *v, size_t n)
{
	double *copy = malloc((n + 1) * sizeof(*v));

	if (copy) {
		memcpy(copy, v, n * sizeof(*v));
		qsort(copy, n, sizeof(*v), by_value);
	}
	return copy;
}

static double median(const double *v, size_t n)
{
	CLEANUP_FREE double *s = n ? sorted(v, n) : NULL;

	if (!s)
		return 0;
	return n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
}

static void print_json(const struct bench *b, const char *command)
{
	printf("{\"bench\":\"%s\",\"size\":%llu,\"block\":%llu,\"source\":%llu,\"ranks\":%u,"
	       "\"rounds\":%u,\"series\":[",
	       command, (unsigned long long)b->size, (unsigned long long)b->block,
	       (unsigned long long)b->source, b->ranks, b->rounds);
	for (unsigned i = 0; i < b->n_series; i++) {
		const struct bench_series *s = &b->series[i];
		CLEANUP_FREE double *v = sorted(s->v, s->n);

		if (!v || !s->n)
			continue;
		printf("%s\n{\"label\":\"%s\",\"metric\":\"%s\",\"unit\":\"%s\",\"median\":%.6g,"
		       "\"min\":%.6g,\"max\":%.6g,\"samples\":[",
		       i ? "," : "", s->label, s->metric, s->unit, median(s->v, s->n), v[0],
		       v[s->n - 1]);
		for (size_t k = 0; k < s->n; k++)
			printf("%s%.6g", k ? "," : "", s->v[k]);
		printf("]}");
	}
	printf("]}\n");
}

static void print_tsv(const struct bench *b)
{
	for (unsigned i = 0; i < b->n_series; i++)
		for (size_t k = 0; k < b->series[i].n; k++)
			printf("%s\t%s\t%s\t%.6g\n", b->series[i].label, b->series[i].metric,
			       b->series[i].unit, b->series[i].v[k]);
}

/* The last place is the reference: the last series of the same metric. */
static const struct bench_series *baseline(const struct bench *b, const struct bench_series *s)
{
	for (unsigned i = b->n_series; i-- > 0;)
		if (!strcmp(b->series[i].metric, s->metric))
			return &b->series[i];
	return s;
}

static void print_text(const struct bench *b)
{
	printf("%-16s %-18s %10s %10s %10s %-7s %3s  %s\n", "place", "figure", "median", "min",
	       "max", "", "n", "ratio to the last place");
	for (unsigned i = 0; i < b->n_series; i++) {
		const struct bench_series *s = &b->series[i], *base = baseline(b, s);
		CLEANUP_FREE double *v = sorted(s->v, s->n);
		double low;

		if (!v || !s->n)
			continue;
		printf("%-16s %-18s %10.3f %10.3f %10.3f %-7s %3zu", s->label, s->metric,
		       median(s->v, s->n), v[0], v[s->n - 1], s->unit, s->n);
		low = median(base->v, base->n);
		if (s != base && low > 0)
			printf("  %.2f of %s", median(s->v, s->n) / low, base->label);
		printf("\n");
	}
}

void bench_report(const struct bench *b, const char *command)
{
	if (b->json)
		print_json(b, command);
	else if (b->tsv)
		print_tsv(b);
	else
		print_text(b);
}

void bench_report_free(struct bench *b)
{
	for (unsigned i = 0; i < b->n_series; i++)
		free(b->series[i].v);
	b->n_series = 0;
}
