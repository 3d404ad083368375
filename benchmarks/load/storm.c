/* storm: MQTT 5 clients that connect, to measure how a cluster decides who owns a client id.
 *
 * Each line of standard input is a command, answered by one JSON object in a line:
 *
 *   open FIRST COUNT AT_ONCE CLEAN EXPIRY RETRY_MS TIMEOUT_S PART PORT...
 *     Connect the clients storm-FIRST and following, at most AT_ONCE unanswered ones at a time, each to the port of its turn.
 *     Their earlier connections stay open. One that is refused or closed before its CONNACK tries again after RETRY_MS (0: never),
 *     at the same port. A time is that from the first attempt to the CONNACK; without retries those that refuse count, too.
 *     When PART clients are connected, {"part": n} comes first.
 *   crowd COUNT LATE_MS TIMEOUT_S PORT...
 *     Connect COUNT clients with one new client id at once, but the last one LATE_MS after the others, and wait until nothing has
 *     happened for a second. No clock is exact enough to say which of those that connect in the same moment is the last.
 *   drop
 *     Close all connections without DISCONNECT.
 *
 * Exit status: 0 at the end of the input, or 1 with a line on standard error. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 512, PACKET_BYTES = 256, PORTS_MAX = 64, CODES = 256, QUIET_NS = 1000000000 };

enum state { FREE, CONNECTING, ASKED, UP, WAITING };

struct client {
  int fd, index, port;
  enum state state;
  bool is_old; /* of an earlier command: only its end counts */
  uint64_t began, due;
  size_t have;
  uint8_t packet[PACKET_BYTES];
};

static int epoll, crowd_number;
static struct client **clients;
static int client_count, client_room;
static int ports[PORTS_MAX], port_count;

static struct {
  int clean, at_once, retry_ms, part, wanted, opened, unanswered, connected;
  uint32_t expiry;
  char shared_id[40];
  uint64_t refused[CODES], disconnected[CODES], closed, retries, last_event;
  double *times; /* of answers, in milliseconds */
  int timed;
} run;

static void fail(const char *format, ...) {
  va_list words;
  va_start(words, format);
  fputs("storm: ", stderr);
  vfprintf(stderr, format, words);
  fputc('\n', stderr);
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static struct client *new_client(void) {
  if (client_count == client_room) {
    client_room = client_room ? 2 * client_room : 1024;
    if (!(clients = realloc(clients, client_room * sizeof *clients))) fail("out of memory");
  }
  struct client *c = calloc(1, sizeof *c);
  if (!c) fail("out of memory");
  return clients[client_count++] = c;
}

static void dial(struct client *c) {
  if ((c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) < 0) fail("socket: %s", strerror(errno));
  int on = 1;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  /* A source address for each 20,000 clients: the ports of one would not do. */
  struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + c->index / 20000)};
  setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (bind(c->fd, (void *)&from, sizeof from)) fail("bind: %s", strerror(errno));
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(c->fd, (void *)&to, sizeof to) && errno != EINPROGRESS) fail("connect: %s", strerror(errno));
  struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &wanted);
  c->state = CONNECTING;
  c->have = 0;
}

static void send_connect(struct client *c) {
  char id[64];
  if (*run.shared_id) strcpy(id, run.shared_id);
  else snprintf(id, sizeof id, "storm-%d", c->index);
  uint8_t b[128] = {0x10, 0, 0, 4, 'M', 'Q', 'T', 'T', 5, run.clean ? 2 : 0, 1, 44 /* keep-alive 300 s */};
  size_t n = 12;
  b[n++] = 5, b[n++] = 0x11; /* Session Expiry Interval */
  for (int shift = 24; shift >= 0; shift -= 8) b[n++] = run.expiry >> shift;
  size_t size = strlen(id);
  b[n++] = size >> 8, b[n++] = size;
  memcpy(b + n, id, size);
  n += size;
  b[1] = n - 2;
  if (send(c->fd, b, n, MSG_NOSIGNAL) != (ssize_t)n) return; /* its end comes as an event */
  struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &wanted);
  c->state = ASKED;
}

static void hang_up(struct client *c) {
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  c->state = FREE;
}

/* Its connection has ended, perhaps before it was answered. */
static void on_end(struct client *c) {
  bool was_open = c->state == UP;
  hang_up(c);
  if (was_open || c->is_old) {
    run.closed += was_open && !c->is_old && !*run.shared_id;
    return;
  }
  if (run.retry_ms) {
    run.retries++;
    c->state = WAITING;
    c->due = now_ns() + run.retry_ms * 1000000ull;
  } else {
    run.unanswered--;
  }
}

static void on_packet(struct client *c, const uint8_t *p, size_t size) {
  int code = size > 3 ? p[3] : 0;
  run.last_event = now_ns();
  switch (p[0] >> 4) {
  case 2:
    if (code) {
      run.refused[code]++;
      if (!run.retry_ms) run.times[run.timed++] = (run.last_event - c->began) / 1e6;
      on_end(c);
      return;
    }
    c->state = UP;
    run.times[run.timed++] = (run.last_event - c->began) / 1e6;
    run.connected++;
    run.unanswered--;
    if (run.connected == run.part) printf("{\"part\":%d}\n", run.connected), fflush(stdout);
    return;
  case 14: run.disconnected[size > 2 ? p[2] : 0]++; return;
  default: fail("a packet of type %d", p[0] >> 4);
  }
}

static void on_readable(struct client *c) {
  ssize_t got = recv(c->fd, c->packet + c->have, sizeof c->packet - c->have, 0);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) {
    if (!c->is_old && c->state == ASKED) run.closed++;
    on_end(c);
    return;
  }
  c->have += got;
  while (c->have >= 2) {
    /* CONNACK with its properties and DISCONNECT are short, or their length takes two bytes. */
    size_t head = c->packet[1] & 0x80 ? 3 : 2, size = head + (c->packet[1] & 0x7f) + (head == 3 ? c->packet[2] << 7 : 0);
    if (size > sizeof c->packet) fail("a packet of %zu bytes", size);
    if (c->have < size) return;
    uint8_t packet[PACKET_BYTES];
    memcpy(packet, c->packet, size);
    memmove(c->packet, c->packet + size, c->have -= size);
    if (head == 3) memmove(packet + 1, packet + 2, --size);
    on_packet(c, packet, size);
    if (c->state != UP) return;
  }
}

static void turn(int timeout_ms) {
  struct epoll_event events[EVENTS];
  int count = epoll_wait(epoll, events, EVENTS, timeout_ms);
  for (int i = 0; i < count; i++) {
    struct client *c = events[i].data.ptr;
    if (c->state == CONNECTING && events[i].events & (EPOLLERR | EPOLLHUP)) run.closed++, on_end(c);
    else if (c->state == CONNECTING && events[i].events & EPOLLOUT) send_connect(c);
    else if (c->state == ASKED || c->state == UP) on_readable(c);
  }
}

static void forget_closed(void) {
  int kept = 0;
  for (int i = 0; i < client_count; i++) {
    if (clients[i]->state == FREE) free(clients[i]);
    else clients[kept++] = clients[i], clients[i]->is_old = true;
  }
  client_count = kept;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double percentile(double share) {
  return run.timed ? run.times[(int)((run.timed - 1) * share)] : 0;
}

static void print_codes(const char *name, const uint64_t *codes) {
  printf(",\"%s\":{", name);
  const char *comma = "";
  for (int code = 0; code < CODES; code++)
    if (codes[code]) printf("%s\"%d\":%llu", comma, code, (unsigned long long)codes[code]), comma = ",";
  printf("}");
}

static void print_run(uint64_t began, int alive, int last) {
  qsort(run.times, run.timed, sizeof *run.times, by_value);
  printf("{\"wanted\":%d,\"connected\":%d,\"seconds\":%.3f,\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"max_ms\":%.2f", run.wanted,
         run.connected, (now_ns() - began) / 1e9, percentile(.5), percentile(.99), percentile(1));
  printf(",\"closed\":%llu,\"retries\":%llu,\"alive\":%d,\"last\":%d", (unsigned long long)run.closed,
         (unsigned long long)run.retries, alive, last);
  print_codes("refused", run.refused);
  print_codes("disconnected", run.disconnected);
  printf(",\"percentiles_ms\":[");
  for (int each = 0; each <= 100; each++) printf("%s%.2f", each ? "," : "", percentile(each / 100.));
  puts("]}");
  fflush(stdout);
}

static void begin(int wanted) {
  free(run.times);
  memset(&run, 0, sizeof run);
  run.wanted = wanted;
  if (!(run.times = calloc(wanted + 1, sizeof *run.times))) fail("out of memory");
  forget_closed();
}

static void read_ports(void) {
  port_count = 0;
  for (char *word; (word = strtok(NULL, " \n"));) {
    if (port_count == PORTS_MAX) fail("more than %d ports", PORTS_MAX);
    ports[port_count++] = atoi(word);
  }
  if (!port_count) fail("no port");
}

static int number(void) {
  char *word = strtok(NULL, " \n");
  if (!word) fail("a number is missing");
  return atoi(word);
}

static void start_client(int index) {
  struct client *c = new_client();
  c->index = index;
  c->port = ports[run.opened++ % port_count];
  c->began = now_ns();
  run.unanswered++;
  dial(c);
}

static void retry_due(int first) {
  uint64_t now = now_ns();
  for (int i = first; i < client_count; i++)
    if (clients[i]->state == WAITING && clients[i]->due <= now) dial(clients[i]);
}

static void open_clients(void) {
  int first = number(), count = number();
  begin(count);
  run.at_once = number(), run.clean = number(), run.expiry = number(), run.retry_ms = number();
  double timeout_s = number();
  run.part = number();
  read_ports();
  int mine = client_count;
  uint64_t began = now_ns();
  while ((run.opened < count || run.unanswered) && (now_ns() - began) / 1e9 < timeout_s) {
    while (run.opened < count && run.unanswered < run.at_once) start_client(first + run.opened);
    turn(5);
    retry_due(mine);
  }
  for (int i = mine; i < client_count; i++)
    if (clients[i]->state != UP && clients[i]->state != FREE) hang_up(clients[i]);
  print_run(began, run.connected, -1);
}

static void crowd(void) {
  int count = number();
  begin(count);
  uint64_t late_ns = number() * 1000000ull;
  double timeout_s = number();
  read_ports();
  snprintf(run.shared_id, sizeof run.shared_id, "crowd-%d-%d", getpid(), ++crowd_number);
  run.clean = 1, run.at_once = count;
  int mine = client_count;
  uint64_t began = run.last_event = now_ns();
  while (run.opened < count - 1) start_client(run.opened);
  while (now_ns() - began < late_ns) turn(1);
  start_client(run.opened);
  run.last_event = now_ns();
  while ((now_ns() - began) / 1e9 < timeout_s && (run.unanswered || now_ns() - run.last_event < QUIET_NS)) turn(5);
  int alive = 0, last = -1;
  for (int i = mine; i < client_count; i++)
    if (clients[i]->state == UP) alive++, last = clients[i]->index;
    else if (clients[i]->state != FREE) hang_up(clients[i]);
  print_run(began, alive, last);
}

int main(void) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  epoll = epoll_create1(0);
  char line[1024];
  while (fgets(line, sizeof line, stdin)) {
    char *command = strtok(line, " \n");
    if (!command) continue;
    if (!strcmp(command, "open")) open_clients();
    else if (!strcmp(command, "crowd")) crowd();
    else if (!strcmp(command, "drop")) {
      for (int i = 0; i < client_count; i++) hang_up(clients[i]);
      forget_closed();
      puts("{}");
      fflush(stdout);
    } else fail("unknown command %s", command);
  }
  return 0;
}
