/* A preloaded library that sets the wall clock of a program off by the seconds in
   STORELAB_SKEW. It asks the kernel itself, since a server may allocate memory, and
   so ask for the time, before the real functions could be looked up. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew(void)
{
	static long value, known;
	if (!known) {
		const char *s = getenv("STORELAB_SKEW");
		value = s ? atol(s) : 0;
		known = 1;
	}
	return value;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = syscall(SYS_clock_gettime, id, ts);
	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		ts->tv_sec += skew();
	return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	int rc = syscall(SYS_gettimeofday, tv, tz);
	if (rc == 0)
		tv->tv_sec += skew();
	return rc;
}

time_t time(time_t *t)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
