/* A switch between TAP devices, one for each emulated host. Every frame crosses
 *
 *   up-queue of the sender -> delay of both links -> down-queue of the receiver
 *
 * Queues have a rate, and drop what would wait longer than QUEUE_NS (argv[1]). With argv[2]
 * "whole", senders hand over several TCP segments in one frame, as to a network card that
 * cuts them up; they stay together, cost a fraction of the time, and count as what they would be
 * on a wire: a header for each. They would be lost together, too.
 * Hosts are found by the last two bytes of their hardware address, which is the
 * number of the line that made them; there is no broadcast. Lines on standard input:
 *
 *   host NETNS_PATH DEVICE UP_BIT_PER_S DOWN_BIT_PER_S DELAY_NS LOSS ACCEPTS_INBOUND
 *   start                      answered with "ready" on standard output
 *   set HOST UP DOWN DELAY_NS LOSS ACCEPTS_INBOUND
 *
 * The end of standard input ends the program: it never outlives its parent.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_HOSTS = 512,
    MAX_FRAME_BYTES = 65600 + sizeof(struct virtio_net_hdr),
    MAX_LINE_BYTES = 512,
    ETHERNET_HEADER_BYTES = 14,
    FRAMES_PER_TURN = 64, /* of one host, before others have their turn */
    TIMER = MAX_HOSTS,    /* numbers of the descriptors that are no host's */
    INPUT,
};
static const int64_t NS_PER_S = 1000000000;
static const int64_t EARLY_NS = 20000; /* a timer costs more than being so early */

typedef struct {
    double up_bit_per_s, down_bit_per_s, loss;
    int64_t delay_ns;
    int accepts_inbound;
} Link;

typedef struct {
    int fd;
    Link link;
    int64_t up_busy_until_ns, down_busy_until_ns;
} Host;

typedef struct {
    int64_t due_ns;
    uint64_t sequence; /* frames that are due together leave in the order in which they came */
    Host *receiver;
    uint8_t *bytes; /* a virtio_net_hdr, and then the frame */
    int num_bytes;
    int num_wire_bytes;
    bool has_left_queue; /* is through the down-queue too */
} Frame;

static Host hosts[MAX_HOSTS];
static int num_hosts;
static int64_t queue_ns;
static bool is_whole;

/* Frames under way: a binary heap, the earliest first. */
static Frame *heap;
static size_t heap_size, heap_capacity;
static uint64_t num_pushed;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static bool is_before(const Frame *a, const Frame *b) {
    return a->due_ns < b->due_ns || (a->due_ns == b->due_ns && a->sequence < b->sequence);
}

static void push(Frame frame) {
    if (heap_size == heap_capacity) {
        heap_capacity = heap_capacity ? 2 * heap_capacity : 4096;
        heap = realloc(heap, heap_capacity * sizeof *heap);
        if (heap == NULL) fail("frames under way");
    }
    frame.sequence = num_pushed++;
    size_t at = heap_size++;
    while (at > 0 && is_before(&frame, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = frame;
}

static Frame pop(void) {
    Frame first = heap[0], last = heap[--heap_size];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap_size) break;
        if (child + 1 < heap_size && is_before(&heap[child + 1], &heap[child])) child++;
        if (!is_before(&heap[child], &last)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

/* Puts a frame into a queue at `at_ns`; returns when it is out at the other end, or -1 if
 * the queue is full. A queue is no more than the time until which it is busy. */
static int64_t pass_queue(int64_t at_ns, int64_t *busy_until_ns, double bit_per_s, int num_bytes) {
    if (*busy_until_ns < at_ns) *busy_until_ns = at_ns;
    if (*busy_until_ns - at_ns > queue_ns) return -1;
    *busy_until_ns += (int64_t)(num_bytes * 8.0 * NS_PER_S / bit_per_s);
    return *busy_until_ns;
}

/* Returns where the TCP header of a frame is; 0 if it is not TCP over IPv4. */
static int find_tcp(const uint8_t *frame, int num_bytes) {
    if (num_bytes < ETHERNET_HEADER_BYTES + 20 || frame[12] != 0x08 || frame[13] != 0x00) return 0;
    const uint8_t *ip = frame + ETHERNET_HEADER_BYTES;
    int tcp = ETHERNET_HEADER_BYTES + 4 * (ip[0] & 15);
    return ip[9] == 6 && num_bytes >= tcp + 20 ? tcp : 0;
}

/* Returns how much a frame is on a wire, where each of its segments has the headers. */
static int count_wire_bytes(const struct virtio_net_hdr *hint, const uint8_t *frame, int num_bytes) {
    int tcp = find_tcp(frame, num_bytes);
    if (hint->gso_type == VIRTIO_NET_HDR_GSO_NONE || hint->gso_size == 0 || tcp == 0)
        return num_bytes;
    int num_header_bytes = tcp + 4 * (frame[tcp + 12] >> 4);
    int num_segments = (num_bytes - num_header_bytes + hint->gso_size - 1) / hint->gso_size;
    return num_bytes + (num_segments - 1) * num_header_bytes;
}

/* Sends what a host gave us: a hint about the frame, and the frame. */
static void send_frame(Host *sender, const uint8_t *bytes, int num_bytes) {
    struct virtio_net_hdr hint;
    memcpy(&hint, bytes, sizeof hint);
    const uint8_t *frame = bytes + sizeof hint;
    int num_frame_bytes = num_bytes - sizeof hint;
    int number = frame[4] << 8 | frame[5];
    if ((frame[0] & 1) || number >= num_hosts || &hosts[number] == sender) return;
    Host *receiver = &hosts[number];
    int num_wire_bytes = count_wire_bytes(&hint, frame, num_frame_bytes);
    int64_t left_ns = pass_queue(now_ns(), &sender->up_busy_until_ns, sender->link.up_bit_per_s,
                                 num_wire_bytes);
    if (left_ns < 0) return;
    if (drand48() < sender->link.loss || drand48() < receiver->link.loss) return;
    int tcp = find_tcp(frame, num_frame_bytes);
    bool opens_connection = tcp > 0 && (frame[tcp + 13] & 0x12) == 0x02; /* SYN without ACK */
    if (opens_connection && !receiver->link.accepts_inbound) return;
    uint8_t *copy = malloc(num_bytes);
    if (copy == NULL) fail("a frame");
    memcpy(copy, bytes, num_bytes);
    push((Frame){.due_ns = left_ns + sender->link.delay_ns + receiver->link.delay_ns,
                 .receiver = receiver,
                 .bytes = copy,
                 .num_bytes = num_bytes,
                 .num_wire_bytes = num_wire_bytes});
}

static void deliver_due_frames(void) {
    int64_t latest_ns = now_ns() + EARLY_NS;
    while (heap_size > 0 && heap[0].due_ns <= latest_ns) {
        Frame frame = pop();
        Host *host = frame.receiver;
        if (!frame.has_left_queue) {
            frame.due_ns = pass_queue(frame.due_ns, &host->down_busy_until_ns,
                                      host->link.down_bit_per_s, frame.num_wire_bytes);
            frame.has_left_queue = true;
            if (frame.due_ns < 0)
                free(frame.bytes);
            else
                push(frame);
            continue;
        }
        /* A host whose device is down loses the frame, as on a real wire. */
        if (write(host->fd, frame.bytes, frame.num_bytes) < 0) {}
        free(frame.bytes);
    }
}

static void take_frames(Host *host) {
    static uint8_t bytes[MAX_FRAME_BYTES];
    for (int i = 0; i < FRAMES_PER_TURN; i++) {
        int num_bytes = read(host->fd, bytes, sizeof bytes);
        if (num_bytes < (int)sizeof(struct virtio_net_hdr) + ETHERNET_HEADER_BYTES) return;
        send_frame(host, bytes, num_bytes);
    }
}

static bool parse_link(const char *text, Link *link) {
    double delay_ns;
    if (sscanf(text, "%lf %lf %lf %lf %d", &link->up_bit_per_s, &link->down_bit_per_s, &delay_ns,
               &link->loss, &link->accepts_inbound) != 5)
        return false;
    link->delay_ns = (int64_t)delay_ns;
    return link->up_bit_per_s > 0 && link->down_bit_per_s > 0;
}

static void add_host(const char *line, int home) {
    char path[256], device[IFNAMSIZ];
    int num_chars = 0;
    Host *host = &hosts[num_hosts];
    if (num_hosts == MAX_HOSTS || sscanf(line, "host %255s %15s %n", path, device, &num_chars) != 2 ||
        !parse_link(line + num_chars, &host->link)) {
        fprintf(stderr, "no host: %s", line);
        exit(2);
    }
    int namespace = open(path, O_RDONLY | O_CLOEXEC);
    if (namespace < 0 || setns(namespace, CLONE_NEWNET)) fail(path);
    close(namespace);
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    memcpy(request.ifr_name, device, sizeof device);
    host->fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (host->fd < 0 || ioctl(host->fd, TUNSETIFF, &request)) fail("/dev/net/tun");
    if (is_whole && ioctl(host->fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) fail("TUNSETOFFLOAD");
    if (setns(home, CLONE_NEWNET)) fail("the first namespace");
    num_hosts++;
}

static void obey(const char *line) {
    int number, num_chars = 0;
    Link link;
    if (sscanf(line, "set %d %n", &number, &num_chars) == 1 && number >= 0 && number < num_hosts &&
        parse_link(line + num_chars, &link))
        hosts[number].link = link;
    else
        fprintf(stderr, "not understood: %s\n", line);
}

/* Obeys every whole line there is; returns false at the end of the input. */
static bool take_lines(void) {
    static char text[4096];
    static size_t size;
    ssize_t num_read = read(STDIN_FILENO, text + size, sizeof text - 1 - size);
    if (num_read < 0) return errno == EAGAIN || errno == EINTR;
    if (num_read == 0) return false;
    size += num_read;
    text[size] = 0;
    char *line = text;
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = 0;
        obey(line);
    }
    size -= line - text;
    memmove(text, line, size);
    if (size == sizeof text - 1) size = 0; /* no line of ours is so long */
    return true;
}

static void watch(int epoll, int fd, unsigned number) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("epoll");
}

static void run(void) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll < 0 || timer < 0) fail("epoll");
    for (int i = 0; i < num_hosts; i++) watch(epoll, hosts[i].fd, i);
    watch(epoll, timer, TIMER);
    watch(epoll, STDIN_FILENO, INPUT);
    int64_t armed_ns = 0;
    for (;;) {
        struct epoll_event events[64];
        int num_events = epoll_wait(epoll, events, 64, -1);
        if (num_events < 0 && errno != EINTR) fail("epoll");
        for (int i = 0; i < num_events; i++) {
            unsigned number = events[i].data.u32;
            uint64_t expirations;
            if (number == INPUT) {
                if (!take_lines()) return;
            } else if (number == TIMER) {
                if (read(timer, &expirations, sizeof expirations) < 0) {}
                armed_ns = 0;
            } else {
                take_frames(&hosts[number]);
            }
        }
        deliver_due_frames();
        if (heap_size > 0 && heap[0].due_ns != armed_ns) {
            armed_ns = heap[0].due_ns;
            struct itimerspec when = {.it_value = {armed_ns / NS_PER_S, armed_ns % NS_PER_S}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        }
    }
}

/* Late frames would look like a slower link. Linux weighs sessions first (if it groups by
 * them), then the processes of one. Without the right to it, do without. */
static void hurry(void) {
    if (setpriority(PRIO_PROCESS, 0, -15)) {}
    FILE *session = fopen("/proc/self/autogroup", "w");
    if (session == NULL) return;
    fputs("-15", session);
    fclose(session);
}

int main(int argc, char **argv) {
    char line[MAX_LINE_BYTES];
    queue_ns = argc > 1 ? atoll(argv[1]) : NS_PER_S / 10;
    is_whole = argc > 2 && strcmp(argv[2], "whole") == 0;
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (home < 0) fail("/proc/self/ns/net");
    srand48(1);
    setvbuf(stdin, NULL, _IONBF, 0); /* what follows "start" is read by take_lines */
    for (;;) {
        if (fgets(line, sizeof line, stdin) == NULL) return 0;
        if (strcmp(line, "start\n") == 0) break;
        add_host(line, home);
    }
    hurry();
    if (fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK)) fail("standard input");
    puts("ready");
    fflush(stdout);
    run();
    return 0;
}
