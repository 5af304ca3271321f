// SPDX-License-Identifier: MIT
// The check of the order of locks that every test program has: tests/lib/locks.c.
#include <gtest/gtest.h>

#include <thread>

#include "io/locks.h"
#include "tests/lib/locks.h"

namespace {

pthread_mutex_t ranked(lock_rank rank)
{
	pthread_mutex_t m;
	lock_init(&m, rank);
	return m;
}

pthread_rwlock_t ranked_rw(lock_rank rank)
{
	pthread_rwlock_t l;
	lock_init_rw(&l, rank);
	return l;
}

// With the ranks of the product's; here they guard nothing.
pthread_mutex_t tree = ranked(RANK_TREE), staging = ranked(RANK_STAGING);
pthread_mutex_t io_a = ranked(RANK_STAGED_IO), io_b = ranked(RANK_STAGED_IO);
pthread_mutex_t stages = ranked(RANK_STAGES), stage_a = ranked(RANK_STAGE), stage_b = ranked(RANK_STAGE);
pthread_rwlock_t reserve = ranked_rw(RANK_RESERVE);
pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

void take(pthread_mutex_t *m) { pthread_mutex_lock(m); }
void give(pthread_mutex_t *m) { pthread_mutex_unlock(m); }

timespec past() { return {}; }

} // namespace

TEST(Locks, a_rising_order_passes_and_any_order_of_releasing)
{
	take(&tree);
	take(&io_a);
	pthread_rwlock_rdlock(&reserve);
	take(&staging);
	EXPECT_EQ(4u, locks_held());
	give(&tree);
	give(&staging);
	take(&staging);
	give(&io_a);
	pthread_rwlock_unlock(&reserve);
	give(&staging);
	EXPECT_EQ(0u, locks_held());
}

TEST(Locks, a_lock_that_is_only_tried_may_be_asked_for_in_any_order)
{
	take(&staging);
	EXPECT_EQ(0, pthread_mutex_trylock(&io_a));
	EXPECT_EQ(2u, locks_held());
	std::thread([] {
		EXPECT_EQ(0u, locks_held());
		EXPECT_EQ(EBUSY, pthread_mutex_trylock(&io_a));
		EXPECT_EQ(0u, locks_held());
	}).join();
	give(&io_a);
	give(&staging);
}

TEST(Locks, a_wait_releases_its_lock_and_takes_it_again)
{
	timespec t = past();
	take(&io_a);	// may be held over waits
	take(&staging);
	EXPECT_EQ(ETIMEDOUT, pthread_cond_timedwait(&cond, &staging, &t));
	EXPECT_EQ(2u, locks_held());
	give(&staging);
	give(&io_a);

	bool told = false;
	take(&staging);
	std::thread other([&] {
		take(&tree);
		take(&staging);
		told = true;
		pthread_cond_signal(&cond);
		give(&staging);
		give(&tree);
	});
	while (!told)
		pthread_cond_wait(&cond, &staging);
	EXPECT_EQ(1u, locks_held());
	give(&staging);
	other.join();
}

TEST(Locks, several_of_one_rank_with_the_lock_above_them)
{
	take(&stages);
	take(&stage_b);
	take(&stage_a);
	EXPECT_EQ(3u, locks_held());
	give(&stage_a);
	give(&stage_b);
	give(&stages);
}

TEST(Locks, locks_without_a_rank_are_a_library_s)
{
	pthread_mutex_t other = PTHREAD_MUTEX_INITIALIZER;
	take(&staging);
	take(&other);
	EXPECT_EQ(1u, locks_held());
	give(&other);
	give(&staging);
}

TEST(LocksDeathTest, a_wrong_order_names_both_locks)
{
	EXPECT_DEATH(
		{
			take(&staging);
			take(&tree);
		},
		"takes tree.lock .fs/tree/state.h. with staging.lock .staging/internal.h. held");
	EXPECT_DEATH(
		{
			take(&staging);
			pthread_rwlock_rdlock(&reserve);
		},
		"takes reserve.lock .* with staging.lock");
	EXPECT_DEATH(
		{
			pthread_rwlock_wrlock(&reserve);
			take(&io_a);
		},
		"takes staged_io.lock .* with reserve.lock");
}

TEST(LocksDeathTest, all_that_are_held_count_and_not_the_last_alone)
{
	EXPECT_DEATH(
		{
			take(&staging);
			pthread_mutex_trylock(&tree);
			take(&io_a);
		},
		"takes staged_io.lock .* with staging.lock");
}

TEST(LocksDeathTest, two_of_one_rank)
{
	EXPECT_DEATH(
		{
			take(&io_a);
			take(&io_b);
		},
		"takes staged_io.lock .* with staged_io.lock");
	EXPECT_DEATH(
		{
			take(&stage_a);
			take(&stage_b);
		},
		"takes cairn_stage.lock .* with cairn_stage.lock");
	EXPECT_DEATH(
		{
			take(&tree);
			take(&tree);
		},
		"takes tree.lock .* with tree.lock");
}

TEST(LocksDeathTest, a_wait_with_another_lock_held)
{
	timespec t = past();
	EXPECT_DEATH(
		{
			take(&tree);
			take(&staging);
			pthread_cond_timedwait(&cond, &staging, &t);
		},
		"waits for staging.lock .* with tree.lock");
	EXPECT_DEATH(
		{
			take(&staging);
			pthread_mutex_trylock(&io_a);
			pthread_cond_timedwait(&cond, &io_a, &t);
		},
		"waits for staged_io.lock .* with staging.lock");
}

TEST(LocksDeathTest, a_release_of_what_is_not_held)
{
	EXPECT_DEATH(give(&tree), "releases tree.lock .* which it does not hold");
}
