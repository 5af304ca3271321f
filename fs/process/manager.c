/* SPDX-License-Identifier: MIT
 * What the service manager shows of the mount (systemctl status): the STATUS= of sd_notify(3).
 */
#include "fs/process/process.h"

#include <string.h>

#define STATUS_NS 2000000000u /* between two looks: each walks what is pending */

static void describe(struct fs *fs, bool ended, char *out, size_t cap)
{
	struct staging_pending p;
	struct staging_stats st;
	const char *end = ended ? "unmounted, " : "";

	staging_get_pending(fs->s, &p);
	staging_get_stats(fs->s, &st);
	if (st.halted.error)
		snprintf(out, cap, "STATUS=%sSTOPPED: the store fails: %s", end,
			 strerror(-st.halted.error));
	else if (st.versions.failed)
		snprintf(out, cap, "STATUS=%s%llu file%s found no space in the store", end,
			 (unsigned long long)st.versions.failed,
			 st.versions.failed == 1 ? "" : "s");
	else if (p.files || p.bytes)
		snprintf(out, cap, "STATUS=%s%.1f MiB of %llu file%s not in the store yet%s", end,
			 (double)p.bytes / (1 << 20), (unsigned long long)p.files,
			 p.files == 1 ? "" : "s",
			 st.held.late ? "; a checkpoint waits for other nodes" : "");
	else
		snprintf(out, cap, "STATUS=%severything closed is durable", end);
}

void manager_look(struct fs *fs, bool ended)
{
	static uint64_t looked_ns;
	static char told[256];
	uint64_t now = monotonic_ns();
	char text[256];

	if (!notify_is_on() || (looked_ns && now - looked_ns < STATUS_NS))
		return;
	looked_ns = now;
	describe(fs, ended, text, sizeof(text));
	if (strcmp(text, told) != 0 && notify_status(text))
		memcpy(told, text, sizeof(told));
}
