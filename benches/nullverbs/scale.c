/* The same work as rs-interlock-scale, in C: pairs that take turns on one completion queue. See README.md.
 *
 *     scale-c table|apart|irregular|ids PAIRS MESSAGES ROUNDS [shuffled]
 *
 * table: keeps for each pair which buffer is in flight in which slot. apart: the same, with as much heap between two
 * pairs as the library takes for one pair. irregular: the same, with varying amounts of heap between the pairs.
 * ids: the number of the buffer is in the wr_id, and the program keeps nothing.
 * Prints "NS <nanoseconds>", the time of MESSAGES completions in the fastest of ROUNDS rounds.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define MESSAGE 64
#define BUFFERS 64
#define BETWEEN 1056
#define DEPTH 16 /* depth of a pair, and number of messages under way */

struct pair {
	struct ibv_qp *qp;
	uint32_t posted, retired;
	uint32_t in_flight[DEPTH]; /* numbers of buffers */
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *memory;
static struct pair *pairs;  /* used by table, apart and irregular */
static struct ibv_qp **qps; /* used by ids */
static uint32_t *turns;	    /* the order of the turns, or NULL: the order of making */
static uint64_t count, turn;
static uint32_t spare[BUFFERS], taken, put; /* a ring of free buffers, oldest first */

static _Noreturn void die(const char *what)
{
	perror(what);
	exit(5);
}

static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS))
		die("init");
	a.qp_state = IBV_QPS_RTR;
	a.dest_qp_num = qp->qp_num;
	if (ibv_modify_qp(qp, &a,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("ready to receive");
	a.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &a,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		die("ready to send");
}

static void set_up(int apart, int irregular)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (!devices || !devices[0] || strcmp(ibv_get_device_name(devices[0]), "null0"))
		die("null0: is LD_LIBRARY_PATH set?");
	context = ibv_open_device(devices[0]);
	ibv_free_device_list(devices);
	pd = ibv_alloc_pd(context);
	memory = aligned_alloc(4096, BUFFERS * MESSAGE);
	memset(memory, 1, BUFFERS * MESSAGE);
	mr = ibv_reg_mr(pd, memory, BUFFERS * MESSAGE, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq(context, count * (DEPTH + 1), NULL, NULL, 0);
	if (!mr || !cq)
		die("a completion queue");
	pairs = aligned_alloc(64, (count * sizeof *pairs + 63) & ~63ul);
	memset(pairs, 0, count * sizeof *pairs);
	qps = calloc(count, sizeof *qps);
	for (uint64_t i = 0; i < count; i++) {
		struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					      .cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1,
						       .max_recv_sge = 1 } };
		if (apart && !malloc(irregular ? 300 + (i * 2654435761u >> 7) % 1500 : BETWEEN))
			die("the heap");
		struct ibv_qp *qp = ibv_create_qp(pd, &a);
		if (!qp)
			die("a queue pair");
		connect_to_itself(qp);
		pairs[i].qp = qps[i] = qp;
	}
	for (uint32_t i = 0; i < BUFFERS; i++)
		spare[i] = i;
}

/* The same order as in the Rust program. */
static void shuffle(void)
{
	uint64_t state = 1;
	turns = malloc(count * sizeof *turns);
	for (uint64_t i = 0; i < count; i++)
		turns[i] = i;
	for (uint64_t i = count - 1; i > 0; i--) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		uint64_t j = (state >> 33) % (i + 1);
		uint32_t t = turns[i];
		turns[i] = turns[j];
		turns[j] = t;
	}
}

static inline uint64_t next_turn(void)
{
	uint64_t at = turn;
	turn = at + 1 == count ? 0 : at + 1;
	return turns ? turns[at] : at;
}

static ALWAYS_INLINE void post(struct ibv_qp *qp, uint64_t id, uint32_t buffer)
{
	struct ibv_sge element = { .addr = (uintptr_t)memory + buffer * MESSAGE, .length = MESSAGE, .lkey = mr->lkey };
	struct ibv_send_wr request = { .wr_id = id, .sg_list = &element, .num_sge = 1, .opcode = IBV_WR_SEND,
				       .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (ibv_post_send(qp, &request, &bad))
		die("post");
}

/* Sends MESSAGES messages, DEPTH under way at a time, each on the pair whose turn it is. */
static ALWAYS_INLINE void exchange(uint64_t messages, const int table)
{
	uint64_t due[DEPTH];
	while (messages) {
		uint32_t posted = messages < DEPTH ? messages : DEPTH, got = 0;
		for (uint32_t i = 0; i < posted; i++) {
			uint64_t at = next_turn();
			uint32_t buffer = spare[taken++ % BUFFERS];
			if (table) {
				struct pair *pair = &pairs[at];
				uint32_t slot = pair->posted % DEPTH;
				if (pair->posted - pair->retired == DEPTH)
					die("no room");
				pair->in_flight[slot] = buffer;
				pair->posted++;
				due[i] = at << 32 | slot;
				post(pair->qp, due[i], buffer);
			} else {
				due[i] = at << 32 | buffer;
				post(qps[at], due[i], buffer);
			}
		}
		while (got < posted) {
			struct ibv_wc wc[DEPTH];
			int n = ibv_poll_cq(cq, DEPTH, wc);
			if (n < 0)
				die("poll");
			for (int i = 0; i < n; i++) {
				uint64_t id = wc[i].wr_id;
				if (wc[i].status != IBV_WC_SUCCESS || got == posted || id != due[got++])
					die("astray");
				if (table) {
					struct pair *pair = &pairs[id >> 32];
					pair->retired++;
					spare[put++ % BUFFERS] = pair->in_flight[(uint32_t)id % DEPTH];
				} else {
					spare[put++ % BUFFERS] = (uint32_t)id;
				}
			}
		}
		messages -= posted;
	}
}

/* For valgrind --tool=callgrind --toggle-collect='counted_work*'. */
__attribute__((noinline)) void counted_work_table(uint64_t messages) { exchange(messages, 1); }
__attribute__((noinline)) void counted_work_ids(uint64_t messages) { exchange(messages, 0); }

int main(int argc, char **argv)
{
	void (*work)(uint64_t) = NULL;
	int irregular = argc > 4 && !strcmp(argv[1], "irregular");
	int apart = irregular || (argc > 4 && !strcmp(argv[1], "apart"));
	if (apart || (argc > 4 && !strcmp(argv[1], "table")))
		work = counted_work_table;
	else if (argc > 4 && !strcmp(argv[1], "ids"))
		work = counted_work_ids;
	if (!work) {
		fprintf(stderr, "usage: %s table|apart|irregular|ids PAIRS MESSAGES ROUNDS [shuffled]\n", argv[0]);
		return 3;
	}
	count = strtoull(argv[2], NULL, 10);
	uint64_t messages = strtoull(argv[3], NULL, 10), rounds = strtoull(argv[4], NULL, 10);
	if (!count || count > 60000)
		return 3;
	set_up(apart, irregular);
	if (argc > 5)
		shuffle();
	long long least = -1;
	for (uint64_t i = 0; i < rounds; i++) {
		struct timespec a, b;
		clock_gettime(CLOCK_MONOTONIC, &a);
		work(messages);
		clock_gettime(CLOCK_MONOTONIC, &b);
		long long ns = (b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec;
		if (least < 0 || ns < least)
			least = ns;
	}
	printf("NS %lld\n", least);
	return 0;
}
