/* flood: load for MQTT brokers from one thread, over TCP, TLS or WebSocket.
 *
 *   flood flow    -p PORT -m pair|fanout|fanin|alone -P publishers -S subscribers -q qos -w window [-d seconds] [-s bytes] [-r rate [-z]]
 *   flood connect -p PORT -n clients -c concurrency
 *   flood table   -p PORT -e exact -W wildcard -n clients
 *   all           [-h IPv4 address] [-5] (MQTT 5) [-t] (TLS) [-x] (WebSocket, path /mqtt)
 *
 * flow is closed-loop: a publisher has at most `window` messages that its subscribers have not all received (QoS 0) or that the
 * broker has not acknowledged (QoS 1, 2). So a broker is never pushed into dropping, and the figure is what it sustains. With
 * -r the publishers together send that many messages per second, and latency counts from the moment a message was due; the
 * program spins, to be punctual, or with -z it sleeps until something arrives or is due and leaves the processor to others.
 * alone has no subscribers: a message has arrived when it is acknowledged (QoS 1 or 2), and the program sleeps between messages.
 * A payload holds the time, a sequence number and its publisher: loss, repetition and order are checked for each message.
 * connect opens clients that each subscribe to a topic after CONNACK, like real clients; table creates subscriptions, 100 to a
 * packet and one packet at a time for each client, and says how long a SUBACK took. Both then stay until standard input ends.
 * One JSON object is printed. Exit status: 0, or 1 with a line on standard error. */
#define _GNU_SOURCE
#include "transport.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum mode { PAIR, FANOUT, FANIN, ALONE };
enum { FILTERS_PER_PACKET = 100, FILTER_BYTES_MAX = 40, NAP_US = 125, SLEEP_NS_MAX = 1000000 };

struct client {
  struct connection wire; /* first, so that pointers to both can be cast */
  int index;
  bool connected;
  char filter[24]; /* to subscribe to after CONNACK */
  uint64_t sent, acked;
  uint16_t packet_id;
  uint64_t *due_ns;    /* alone: by packet id */
  uint64_t asked_ns;   /* table: when the SUBSCRIBE was sent that has no SUBACK; 0: none */
  uint32_t *last_seen; /* subscriber: by publisher */
  uint8_t *packet;     /* publisher: the message, complete except for time, sequence number and packet id */
  size_t packet_size, payload_at, packet_id_at;
};

static struct {
  int publishers, subscribers, qos, window, seconds, bytes, clients, concurrency, exact, wildcard;
  double rate;
  bool v5, sleeps;
  enum mode mode;
} option = {1, 1, 0, 100, 3, 64, 1000, 200, 0, 0, 0, false, false, PAIR};

static struct client *publishers, *subscribers;
static uint64_t *received_of; /* by publisher: copies that arrived */
static uint64_t delivered, lost, repeated, latencies[64 * 16], latency_count;
static int subscribed_count;
static bool measuring;

/* -- latency: a histogram with 16 steps to each power of two --------------------------------------------------------- */

static void note_latency(uint64_t ns) {
  if (ns < 16) ns = 16;
  int exponent = 63 - __builtin_clzll(ns);
  latencies[exponent * 16 + ((ns >> (exponent - 4)) & 15)]++;
  latency_count++;
}

static double latency_ms(double quantile) {
  uint64_t below = 0, wanted = quantile * latency_count;
  for (int slot = 0; slot < 64 * 16; slot++)
    if ((below += latencies[slot]) > wanted) return ((uint64_t)(16 + slot % 16) << (slot / 16 - 4)) / 1e6;
  return 0;
}

/* -- clients --------------------------------------------------------------------------------------------------------- */

static void open_client(struct client *c, int index, const char *kind) {
  uint8_t body[128] = {0, 4, 'M', 'Q', 'T', 'T', option.v5 ? 5 : 4, 2 /* clean */, 1, 44 /* keep-alive 300 s */};
  size_t n = option.v5 ? 11 : 10; /* MQTT 5: no properties, a zero */
  char id[64];
  snprintf(id, sizeof id, "flood-%d-%s-%d", getpid(), kind, index);
  n += put_text(body + n, id);
  c->index = index;
  open_connection(&c->wire);
  append_packet(&c->wire, 0x10, body, n);
}

static void flush_client(struct client *c) {
  if (waiting(&c->wire) && !c->wire.wants_write) flush(&c->wire);
}

static void topic_of(char *text, int publisher) {
  if (option.mode == FANOUT) strcpy(text, "bench/all"); else sprintf(text, "bench/%d/t", publisher);
}

static void subscribe(struct client *c, const char *filter) {
  uint8_t body[256] = {0, 1};
  size_t n = option.v5 ? 3 : 2;
  n += put_text(body + n, filter);
  body[n++] = option.qos;
  append_packet(&c->wire, 0x82, body, n);
}

static void prepare_packet(struct client *c) {
  char topic[64];
  topic_of(topic, c->index);
  size_t size = 2 + strlen(topic) + (option.qos ? 2 : 0) + (option.v5 ? 1 : 0) + option.bytes, n;
  c->packet = calloc(1, size + 5);
  c->packet[0] = 0x30 | option.qos << 1;
  n = 1 + put_length(c->packet + 1, size);
  n += put_text(c->packet + n, topic);
  if (option.qos) c->packet_id_at = n, n += 2;
  if (option.v5) n++;
  c->payload_at = n;
  memset(c->packet + n, 'x', option.bytes);
  memcpy(c->packet + n + 12, &(uint32_t){c->index}, 4);
  c->packet_size = n + option.bytes;
}

static void publish(struct client *c, uint64_t due_ns) {
  uint32_t sequence = ++c->sent;
  memcpy(c->packet + c->payload_at, &due_ns, 8);
  memcpy(c->packet + c->payload_at + 8, &sequence, 4);
  if (option.qos) {
    if (!++c->packet_id) c->packet_id = 1;
    c->packet[c->packet_id_at] = c->packet_id >> 8, c->packet[c->packet_id_at + 1] = c->packet_id;
    if (c->due_ns) c->due_ns[c->packet_id] = due_ns;
  }
  append(&c->wire, c->packet, c->packet_size);
}

static int copies(void) { return option.mode == FANOUT ? option.subscribers : 1; }

/* When a publisher's next message is due. */
static uint64_t next_due(const struct client *c, uint64_t start_ns) {
  return start_ns + (uint64_t)((c->sent + (double)c->index / option.publishers) * (1e9 * option.publishers / option.rate));
}

static bool is_full(const struct client *c) {
  uint64_t seen = option.qos ? c->acked : received_of[c->index] / copies();
  return c->sent - seen >= (uint64_t)option.window || waiting(&c->wire) >= BACKLOG_BYTES;
}

/* Sends what the window and the rate allow. */
static void pump(struct client *c, uint64_t start_ns) {
  uint64_t now = now_ns();
  while (!is_full(c)) {
    uint64_t due = option.rate ? next_due(c, start_ns) : now;
    if (due > now) break;
    publish(c, due);
  }
  flush_client(c);
}

/* Sleeps until something arrives or a message may be sent. */
static void sleep_until_due(uint64_t start_ns) {
  uint64_t now = now_ns(), wake = now + SLEEP_NS_MAX;
  for (int i = 0; i < option.publishers; i++) {
    uint64_t due = next_due(&publishers[i], start_ns);
    if (due < wake && !is_full(&publishers[i])) wake = due;
  }
  if (wake > now) await_events(wake - now);
}

/* -- received packets ------------------------------------------------------------------------------------------------ */

static void on_message(struct client *c, uint8_t first, const uint8_t *body, const uint8_t *end) {
  int qos = first >> 1 & 3;
  const uint8_t *at = body + 2 + (body[0] << 8 | body[1]), *id = at;
  if (qos) at += 2;
  if (option.v5) {
    size_t properties = 0, shift = 0;
    do properties |= (size_t)(*at & 127) << shift, shift += 7; while (*at++ & 128);
    at += properties;
  }
  if (end - at != option.bytes) fail("a message of %ld bytes, where %d were sent", (long)(end - at), option.bytes);
  uint64_t due;
  uint32_t sequence, publisher;
  memcpy(&due, at, 8), memcpy(&sequence, at + 8, 4), memcpy(&publisher, at + 12, 4);
  if (publisher >= (uint32_t)option.publishers) fail("a message of an unknown publisher");
  uint32_t *last = &c->last_seen[option.mode == PAIR ? 0 : publisher];
  if (sequence <= *last) repeated++; else lost += sequence - *last - 1, *last = sequence;
  received_of[publisher]++;
  if (measuring) {
    delivered++;
    if (option.rate || sequence % 16 == 0) note_latency(now_ns() - due);
  }
  if (qos) append_packet(&c->wire, qos == 1 ? 0x40 : 0x50, id, 2);
}

static void on_acknowledged(struct client *c, const uint8_t *id) {
  c->acked++;
  if (option.mode != ALONE) return;
  received_of[c->index]++;
  if (measuring) delivered++, note_latency(now_ns() - c->due_ns[id[0] << 8 | id[1]]);
}

void on_packet(struct connection *wire, uint8_t first_byte, const uint8_t *body, size_t size) {
  struct client *c = (struct client *)wire;
  switch (first_byte >> 4) {
  case 2:
    if (size < 2 || body[1]) fail("CONNECT rejected with %d", size < 2 ? -1 : body[1]);
    c->connected = true;
    if (c->filter[0]) subscribe(c, c->filter);
    break;
  case 3: on_message(c, first_byte, body, body + size); break;
  case 4: case 7: on_acknowledged(c, body); break;
  case 5: append_packet(wire, 0x62, body, 2); break;
  case 6: append_packet(wire, 0x70, body, 2); break;
  case 9:
    if (body[size - 1] > 2) fail("SUBSCRIBE rejected with %d", body[size - 1]);
    subscribed_count++;
    if (c->asked_ns) note_latency(now_ns() - c->asked_ns), c->asked_ns = 0;
    break;
  case 14: fail("DISCONNECT from the broker, reason %d", size ? body[0] : 0);
  }
}

/* -- the three commands ---------------------------------------------------------------------------------------------- */

static double cpu_s(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void expect_before(uint64_t deadline_ns, const char *what) {
  if (now_ns() > deadline_ns) fail("%s took too long", what);
}

static void flow(void) {
  if (option.mode == PAIR) option.subscribers = option.publishers;
  if (option.mode == FANIN) option.subscribers = 1;
  if (option.mode == ALONE) option.subscribers = 0;
  if (option.mode == ALONE && !option.qos) fail("alone needs acknowledgements: QoS 1 or 2");
  publishers = calloc(option.publishers, sizeof *publishers);
  subscribers = calloc(option.subscribers, sizeof *subscribers);
  received_of = calloc(option.publishers, sizeof *received_of);
  uint64_t deadline = now_ns() + 30000000000u;
  for (int i = 0; i < option.subscribers; i++) {
    char filter[64];
    if (option.mode == FANIN) strcpy(filter, "bench/#"); else topic_of(filter, i);
    subscribers[i].last_seen = calloc(option.mode == PAIR ? 1 : option.publishers, sizeof(uint32_t));
    open_client(&subscribers[i], i, "sub");
    subscribe(&subscribers[i], filter);
    flush_client(&subscribers[i]);
  }
  while (subscribed_count < option.subscribers) turn(100), expect_before(deadline, "subscribing");
  for (int i = 0; i < option.publishers; i++) open_client(&publishers[i], i, "pub"), flush_client(&publishers[i]), prepare_packet(&publishers[i]);
  if (option.mode == ALONE) for (int i = 0; i < option.publishers; i++) publishers[i].due_ns = calloc(65536, sizeof(uint64_t));
  for (int i = 0; i < option.publishers;) {
    if (publishers[i].connected) { i++; continue; }
    turn(100), expect_before(deadline, "connecting");
  }
  uint64_t start = now_ns(), measure_at = start + 500000000u, end = measure_at + option.seconds * 1000000000ull, now;
  double cpu = 0;
  while ((now = now_ns()) < end) {
    if (!measuring && now >= measure_at) measuring = true, measure_at = now, cpu = cpu_s();
    for (int i = 0; i < option.publishers; i++) pump(&publishers[i], start);
    /* With a rate, a message is sent when it is due and not a millisecond later; alone, within an eighth of one, since whatever
     * else is measured needs the processors. */
    if (option.sleeps) sleep_until_due(start);
    else if (option.rate && option.mode == ALONE) usleep(NAP_US);
    turn(option.rate ? 0 : 1);
  }
  measuring = false;
  double seconds = (now - measure_at) / 1e9;
  cpu = (cpu_s() - cpu) / seconds;
  uint64_t sent = 0, received = 0, drain_until = now + 3000000000u;
  for (int i = 0; i < option.publishers; i++) sent += publishers[i].sent;
  do {
    turn(10);
    received = 0;
    for (int i = 0; i < option.publishers; i++) received += received_of[i];
  } while (received < sent * copies() && now_ns() < drain_until);
  uint64_t missing = sent * copies() + repeated > received ? sent * copies() + repeated - received : 0;
  printf("{\"delivered_per_s\": %.0f, \"sent\": %lu, \"lost\": %lu, \"dup\": %lu, \"p50_ms\": %.4g, \"p99_ms\": %.4g, \"p999_ms\": %.4g, \"generator_cpu\": %.2f}\n",
         delivered / seconds, sent, missing > lost ? missing : lost, repeated, latency_ms(.5), latency_ms(.99), latency_ms(.999), cpu);
}

static void hold(void) {
  fflush(stdout);
  for (struct pollfd in = {0, POLLIN | POLLHUP, 0}; poll(&in, 1, 0) == 0 || (in.revents & POLLIN && read(0, &(char){0}, 1) > 0);) turn(50);
}

static void connect_clients(void) {
  struct client *clients = calloc(option.clients, sizeof *clients);
  uint64_t start = now_ns(), deadline = start + 120000000000u;
  for (int opened = 0; subscribed_count < option.clients;) {
    for (; opened < option.clients && opened - subscribed_count < option.concurrency; opened++) {
      snprintf(clients[opened].filter, sizeof clients[opened].filter, "bench/%d/t", opened);
      open_client(&clients[opened], opened, "con");
      flush_client(&clients[opened]);
    }
    turn(10), expect_before(deadline, "connecting");
  }
  double seconds = (now_ns() - start) / 1e9;
  printf("{\"connects_per_s\": %.0f, \"clients\": %d, \"seconds\": %.2f}\n", option.clients / seconds, option.clients, seconds);
  hold();
}

/* Half of the wildcard filters share the first level with the topics of flow: all cost the matcher time, none matches. */
static void fill_table(void) {
  struct client *clients = calloc(option.clients, sizeof *clients);
  uint64_t start = now_ns(), deadline = start + 300000000000u;
  int total = option.exact + option.wildcard, packets = 0, next = 0;
  for (int i = 0; i < option.clients; i++) open_client(&clients[i], i, "tab"), flush_client(&clients[i]);
  for (int turn_of = 0; next < total || subscribed_count < packets; turn_of = (turn_of + 1) % option.clients) {
    struct client *c = &clients[turn_of];
    if (next < total && c->connected && !c->asked_ns) {
      uint8_t body[FILTERS_PER_PACKET * FILTER_BYTES_MAX] = {0, 1};
      size_t n = option.v5 ? 3 : 2;
      for (int i = 0; i < FILTERS_PER_PACKET && next < total; i++, next++) {
        char filter[FILTER_BYTES_MAX - 3];
        sprintf(filter, next < option.exact ? "table/%d/t" : next % 2 ? "bench/+/w%d" : "w%d/+/#", next);
        n += put_text(body + n, filter);
        body[n++] = 0;
      }
      append_packet(&c->wire, 0x82, body, n), packets++;
      c->asked_ns = now_ns();
      flush_client(c);
    }
    turn(turn_of ? 0 : 1), expect_before(deadline, "subscribing");
  }
  printf("{\"subscriptions\": %d, \"seconds\": %.2f, \"p50_ms\": %.4g, \"p99_ms\": %.4g}\n", total, (now_ns() - start) / 1e9, latency_ms(.5),
         latency_ms(.99));
  hold();
}

int main(int count, char **words) {
  const char *command = count > 1 ? words[1] : "";
  optind = 2;
  for (int letter; (letter = getopt(count, words, "h:p:m:P:S:q:w:d:s:r:n:c:e:W:5txz")) != -1;) switch (letter) {
    case 'h': endpoint.host = optarg; break;
    case 'p': endpoint.port = atoi(optarg); break;
    case 'm': option.mode = !strcmp(optarg, "fanout") ? FANOUT : !strcmp(optarg, "fanin") ? FANIN : !strcmp(optarg, "alone") ? ALONE : PAIR; break;
    case 'P': option.publishers = atoi(optarg); break;
    case 'S': option.subscribers = atoi(optarg); break;
    case 'q': option.qos = atoi(optarg); break;
    case 'w': option.window = atoi(optarg); break;
    case 'd': option.seconds = atoi(optarg); break;
    case 's': option.bytes = atoi(optarg) < 16 ? 16 : atoi(optarg); break;
    case 'r': option.rate = atof(optarg); break;
    case 'n': option.clients = atoi(optarg); break;
    case 'c': option.concurrency = atoi(optarg); break;
    case 'e': option.exact = atoi(optarg); break;
    case 'W': option.wildcard = atoi(optarg); break;
    case 'z': option.sleeps = true; break;
    case '5': option.v5 = true; break;
    case 't': endpoint.tls = true; break;
    case 'x': endpoint.websocket = true; break;
    default: return 1;
  }
  if (option.sleeps && !option.rate) fail("-z needs a rate: -r");
  start_transport();
  if (!strcmp(command, "flow")) flow();
  else if (!strcmp(command, "connect")) connect_clients();
  else if (!strcmp(command, "table")) fill_table();
  else fail("the command must be flow, connect or table");
  return 0;
}
