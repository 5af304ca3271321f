/* SPDX-License-Identifier: MIT
 * The upkeep thread: frees nodes that the kernel forgot, rotates the log, seals files that were
 * mapped until now, retries failed closes.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <time.h>

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
		staging_get_stats(fs->s, &st); /* failed closes may find space now */
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
