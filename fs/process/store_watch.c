/* SPDX-License-Identifier: MIT
 * Watches the store's filesystem, which may go away under the mount: a network client dies, a
 * disk's filesystem shuts down. A worker that finds it gone exits. The keeper then closes all
 * descriptors of the store, because a filesystem that has shut down can only be mounted again when
 * the old instance is unused, and starts a worker without a store: that one serves what is staged,
 * publishes nothing, and looks for the store by its path. When the path has a store with the same
 * id again, this worker exits, too, and the keeper opens it. Users of the mount see each step as a
 * restart of the worker (P4); replay knows what to apply again.
 */
#include "fs/process/process.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/thread.h"

#define TICK_MS 100u
#define FEW_INODES 1024u
#define LOOK_TICKS 50u /* between checks, without errors */
#define SPACE_TICKS 100u /* of a host that says that it is alive: that is the check */
#define TROUBLE_TICKS 5u /* if publication has halted, or there were errors */
#define BACK_TICKS 10u /* if the store is away */

/* Whether publication has halted, or the engine counted errors since the last check. */
static bool trouble(struct fs *fs, uint64_t *seen)
{
	struct staging_stats st;
	struct io_counts c;

	staging_get_stats(fs->s, &st);
	io_engine_counts(fs->engine, &c);
	bool more = c.errors != *seen;
	*seen = c.errors;
	return more || st.halted.error;
}

/* ENOSPC does not say what is missing. */
static void look_at_inodes(struct fs *fs, uint64_t inodes)
{
	char text[240];

	static bool few;
	bool were = few;

	few = inodes < FEW_INODES;
	if (!few || were)
		return;
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "the store's filesystem has only %llu free inodes; the last 256 are kept for "
		 "what was accepted, and new files get ENOSPC then though there is space: "
		 "remove files in it",
		 (unsigned long long)inodes);
	fs_notice(fs, text);
}

static void look_at_space(struct fs *fs)
{
	store_space_look(fs);
	if (atomic_load(&fs->space.size))
		look_at_inodes(fs, atomic_load(&fs->space.free_inodes));
}

/* Checks twice: one error may be transient. A host that says that it is alive (hosts.c) writes to
 * the store then, and asks for this if that fails: a shared store is not asked more than that. */
static void look_at(struct fs *fs, bool suspect)
{
	bool beats = atomic_load(&fs->hosts.beats);

	if ((beats && !suspect) || !io_store_probe(fs->store)) {
		look_at_space(fs);
		return;
	}
	sleep_ms(TICK_MS);
	if (io_store_probe(fs->store) && keeper_is_there(fs))
		worker_exit(fs, EXIT_STORE_GONE); /* the keeper logs it */
}

static void look_for(struct fs *fs)
{
	static int told;
	struct io_host by = {.said = IO_HOST_SAID_NOTHING};
	char text[512];
	int err = io_store_is_back(fs->store, &by);

	if (!err && keeper_is_there(fs))
		worker_exit(fs, EXIT_STORE_BACK);
	if (err == -EXDEV && told != err)
		fs_notice(fs, LEVEL_ERROR
			  "another store is where the store was: its id differs; it is not used");
	bool claim = err == -EADDRINUSE || atomic_load(&fs->away.error) == -EADDRINUSE;
	if (err && claim && hosts_refused(fs, err, &by, text, sizeof(text)))
		fs_notice(fs, text);
	told = err;
}

static void *store_watch_main(void *arg)
{
	struct fs *fs = arg;
	bool away = io_store_is_detached(fs->store), suspect = false;
	unsigned due = away ? BACK_TICKS : LOOK_TICKS;
	uint64_t seen = 0;

	pthread_setname_np(pthread_self(), "cairn-store");
	look_at_space(fs);
	/* without a keeper, no other worker would be started */
	while (!atomic_load(&fs->stopping) && keeper_is_there(fs)) {
		sleep_ms(TICK_MS);
		if (!away && due > TROUBLE_TICKS && trouble(fs, &seen)) {
			due = TROUBLE_TICKS;
			suspect = true;
		}
		if (atomic_exchange(&fs->away.look, false)) {
			due = 1;
			suspect = true;
		}
		if (--due)
			continue;
		if (away)
			look_for(fs);
		else
			look_at(fs, suspect);
		suspect = false;
		due = away ? BACK_TICKS : atomic_load(&fs->hosts.beats) ? SPACE_TICKS : LOOK_TICKS;
	}
	return NULL;
}

int store_watch_start(struct fs *fs)
{
	return thread_detached(store_watch_main, fs);
}
