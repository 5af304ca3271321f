/* SPDX-License-Identifier: MIT */
#ifndef CAIRN_IO_THREAD_H
#define CAIRN_IO_THREAD_H

#include <errno.h>
#include <pthread.h>

/* A thread that is never joined: it may be in a call that blocks on a dead server. 0 or -EAGAIN. */
static inline int thread_detached(void *(*fn)(void *), void *arg)
{
	pthread_attr_t detached;
	pthread_t t;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	int err = pthread_create(&t, &detached, fn, arg);
	pthread_attr_destroy(&detached);
	return err ? -EAGAIN : 0;
}

#endif
