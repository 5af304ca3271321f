/* SPDX-License-Identifier: MIT
 * The upkeep thread: frees nodes that the kernel forgot, rotates the log, seals files that were
 * mapped until now, retries failed closes.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <time.h>

/* Logs when a commit begins and ends to wait longer than commit_wait. */
static void tell_of_late(struct fs *fs, const struct staging_stats *st)
{
	static bool told;
	char text[800];

	if (st->held.late == told)
		return;
	told = st->held.late;
	if (told)
		snprintf(text, sizeof(text),
			 LEVEL_WARNING "%.200s is late: %.200s; it is published when that is in "
				       "the store, or with: cairn commit --force DIR",
			 st->held.path, st->held.what);
	else
		snprintf(text, sizeof(text), LEVEL_NOTICE "no commit is late any more");
	fs_notice(fs, text);
}

static void *upkeep_main(void *arg)
{
	struct fs *fs = arg;
	unsigned tick = 0;
	char text[300];
	pthread_setname_np(pthread_self(), "cairn-upkeep");
	while (!atomic_load(&fs->stopping)) {
		sleep_ms(200);
		session_look(fs);
		pthread_mutex_lock(&fs->tree.lock);
		ask_let_go(fs);
		node_gc(fs);
		if (!io_store_is_detached(fs->store) && staging_rotate_due(fs->s))
			staging_rotate(fs->s, fs_emit, fs);
		bool refused = share_was_refused(text, sizeof(text));
		pthread_mutex_unlock(&fs->tree.lock);
		if (refused)
			fs_notice(fs, text);
		seal_late(fs);
		staging_watch_buffers(fs->s);
		struct staging_stats st;
		bool freed = staging_space_freed(fs->s);
		if (++tick % 25 && !freed)
			continue;
		fs_log_look(false);
		staging_get_stats(fs->s, &st); /* failed closes may find space now */
		tell_of_late(fs, &st);
		if (st.versions.failed && !st.halted.error)
			retry_failed(fs);
		if (st.recovered.kept)
			staging_keep_again(fs->s);
	}
	return NULL;
}

int upkeep_start(struct fs *fs)
{
	return -pthread_create(&fs->upkeep, NULL, upkeep_main, fs);
}

void upkeep_join(struct fs *fs)
{
	pthread_join(fs->upkeep, NULL);
}
