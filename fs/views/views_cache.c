/* SPDX-License-Identifier: MIT
 * A cache of what was used most recently: of parsed checkpoints, and of layouts.
 */
#include "fs/views/inside.h"
#include "io/scope.h"

static void push(struct vcache *v, struct vcached *x)
{
	x->next = v->first;
	v->first = x;
	x->refs++;
}

struct vcached *vcache_find(struct vcache *v, bool (*is)(const struct vcached *, const void *key),
			    const void *key)
{
	LOCK_SCOPE(v->lock);
	struct vcached **pp = &v->first, *x;
	while ((x = *pp) && !is(x, key))
		pp = &x->next;
	if (x) {
		*pp = x->next;
		push(v, x);
	}
	return x;
}

/* Takes out what is too much, and returns it as a list. Lock held. */
static struct vcached *cut(struct vcache *v)
{
	uint64_t cost = 0;
	unsigned n = 0;
	struct vcached **pp = &v->first, *old = NULL, *x;
	while ((x = *pp)) {
		cost += x->cost;
		if (!n++ || (n <= v->most && cost <= v->most_cost)) {
			pp = &x->next;
			continue;
		}
		*pp = x->next;
		x->next = old;
		old = x;
	}
	return old;
}

void vcache_add(struct vcache *v, struct vcached *x, uint64_t cost, void (*drop)(struct vcached *))
{
	pthread_mutex_lock(v->lock);
	x->cost = cost;
	x->refs = 1;
	push(v, x);
	struct vcached *old = cut(v);
	pthread_mutex_unlock(v->lock);
	while (old) {
		x = old;
		old = x->next;
		drop(x);
	}
}

void vcache_drop(struct vcache *v, struct vcached *x, void (*drop)(struct vcached *))
{
	pthread_mutex_lock(v->lock);
	struct vcached **pp = &v->first;
	while (*pp && *pp != x)
		pp = &(*pp)->next;
	bool there = *pp;
	if (there)
		*pp = x->next;
	pthread_mutex_unlock(v->lock);
	if (there)
		drop(x);
}

bool vcached_put(struct vcache *v, struct vcached *x)
{
	LOCK_SCOPE(v->lock);
	return --x->refs == 0;
}
