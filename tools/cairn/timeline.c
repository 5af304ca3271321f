/* SPDX-License-Identifier: MIT
 *
 * cairn timeline: when checkpoints were saved, and what each waited for.
 */
#include "commands.h"
#include "timeline.h"

#include <getopt.h>
#include <string.h>
#include <time.h>

static double rate(const struct save *s)
{
	uint64_t ms = s->durable - s->created;

	return (double)s->bytes / ((double)(ms ? ms : 1) / 1e3);
}

/* ---- text ---- */

static void print_saves(const struct saves *all, const char *dir)
{
	size_t skip = strlen(dir) + (*dir != '\0');

	printf("%-22s %-14s %9s %9s %10s %6s\n", "CHECKPOINT", "FIRST CREATE", "WRITTEN", "DURABLE",
	       "BYTES", "GB/S");
	for (size_t i = 0; i < all->n; i++) {
		const struct save *s = &all->save[i];
		CLEANUP_FREE char *path = save_name(s);
		CLEANUP_FREE char *name = path ? one_line(path + skip, 22) : NULL;
		time_t at = (time_t)(s->created / 1000);
		char when[32] = "", bytes[32], waits[SAVE_WAITS_ROOM];
		struct tm tm;

		if (localtime_r(&at, &tm))
			strftime(when, sizeof(when), "%m-%d %H:%M:%S", &tm);
		printf("%-22s %-14s %7.3f s %7.3f s %10s %6.2f\n", name ? name : "-", when,
		       (double)(s->closed - s->created) / 1e3,
		       (double)(s->durable - s->created) / 1e3, human_bytes(s->bytes, bytes),
		       rate(s) / 1e9);
		if (save_waits(s, waits))
			print_line("", "waited for %s", waits);
	}
}

/* ---- JSON ---- */

static void put_times(struct json_out *j, uint64_t created, uint64_t closed, uint64_t durable,
		      const uint64_t wait[SAVE_WAITS])
{
	json_put_u64(j, "created_ms", created);
	json_put_u64(j, "closed_ms", closed);
	json_put_u64(j, "durable_ms", durable);
	json_open(j, "waited_ms", '{');
	for (unsigned w = 0; w < SAVE_WAITS; w++)
		json_put_u64(j, save_wait_name[w], wait[w]);
	json_close(j, '}');
}

static void print_json(const struct saves *all)
{
	struct json_out j;

	json_begin(&j, stdout);
	json_open(&j, NULL, '{');
	json_open(&j, "checkpoints", '[');
	for (size_t i = 0; i < all->n; i++) {
		const struct save *s = &all->save[i];
		CLEANUP_FREE char *path = save_name(s);

		json_open(&j, NULL, '{');
		json_put_path(&j, "path", path);
		json_put_u64(&j, "files", s->files);
		json_put_u64(&j, "bytes", s->bytes);
		json_put_u64(&j, "bytes_per_s", (uint64_t)rate(s));
		put_times(&j, s->created, s->closed, s->durable, s->wait);
		json_open(&j, "parts", '[');
		for (size_t k = 0; k < s->n; k++) {
			const struct part *p = s->part[k];

			json_open(&j, NULL, '{');
			json_put_path(&j, "path", p->path);
			json_put_u64(&j, "files", p->files);
			json_put_u64(&j, "bytes", p->bytes);
			put_times(&j, p->created, p->closed, p->durable, p->wait);
			json_close(&j, '}');
		}
		json_close(&j, ']');
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
}

/* ---- the command ---- */

static int complain_record(const struct location *p, int err)
{
	if (err == -ENOTCONN)
		complain_location(p->top, err);
	else
		complain("%s/.cairn: cannot read the timeline: %s%s", p->top, strerror(-err),
			 err == -EACCES || err == -EPERM
				 ? " (only root and the user who mounted it may)"
				 : "");
	return CAIRN_FAILED;
}

/* "-" is stdout. */
static int print_html(const struct saves *all, const char *title, const char *path)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "we") : stdout;

	if (f)
		saves_html(all, title, f);
	bool failed = !f || ferror(f);
	if (f && f != stdout)
		failed |= fclose(f) != 0;
	if (failed)
		complain("%s: cannot write the page: %m", path);
	return failed ? CAIRN_FAILED : CAIRN_OK;
}

static int print_all(const struct saves *all, const struct location *p, bool json, const char *html)
{
	int code = all->n ? CAIRN_OK : CAIRN_FAILED;

	if (json)
		print_json(all);
	else if (!all->n)
		complain("%s: no save below it is recorded", p->arg);
	else if (html)
		code = print_html(all, p->arg, html);
	else
		print_saves(all, p->below);
	return code;
}

int cmd_timeline(int argc, char **argv)
{
	static const struct option opts[] = {
		{"json", no_argument, NULL, 'j'},
		{"html", required_argument, NULL, 'h'},
		{0},
	};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	const char *html = NULL;
	struct saves all;
	bool json = false;
	int c, code, err;

	while ((c = getopt_long(argc, argv, "j", opts, NULL)) != -1) {
		if (c == 'j')
			json = true;
		else if (c == 'h')
			html = optarg;
		else
			return complain_option("timeline", argv);
	}
	if (argc - optind != 1 || (json && html))
		return complain_usage("timeline", json && html ? "--json or --html, not both"
							       : "needs one DIR");
	code = location_need(argv[optind], false, &p);
	if (code)
		return code;
	err = saves_read(&p, &all);
	if (err)
		return complain_record(&p, err);
	code = print_all(&all, &p, json, html);
	saves_free(&all);
	return code;
}
