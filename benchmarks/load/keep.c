/* keep: load on what a broker stores: sessions that resume, and the messages of its log.
 *
 *   keep resume -p PORT -n clients -g topics -k messages [-P publishers] [-w window] [-d seconds]
 *   keep replay -p PORT -f FILTER -n messages
 *
 * resume opens clients with sessions (MQTT 3.1.1, clean session 0) that each subscribe to one topic with QoS 1, and disconnect;
 * publishes `messages` to each topic; then, when a line is read, reconnects all clients at once, and counts until each one has
 * received all of its messages, or `seconds` have passed.
 * replay subscribes to FILTER with QoS 0 and counts messages from then on, up to `messages` or until 2 s without any.
 * A payload of resume holds a sequence number: loss, repetition and order are checked for each message.
 * One JSON object is printed. Exit status: 0, or 1 with a line on standard error. */
#define _GNU_SOURCE
#include "transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAYLOAD_BYTES = 100, SILENCE_NS = 2000000000, AT_ONCE_MAX = 200, CLEAN = 2 };

struct client {
  struct connection wire; /* first, so that pointers to both can be cast */
  int topic;
  bool is_subscribed;
  uint32_t last_seen; /* sequence */
  uint64_t sent, acked;
};

static struct {
  int clients, topics, messages, publishers, window, seconds;
  const char *filter;
} option = {10000, 10000, 100, 10, 100, 60, "#"};

static bool is_replay;
static uint64_t connected, received, received_bytes, lost, repeated, first_ns;

static void open_client(struct client *c, const char *kind, int index, int flags) {
  uint8_t body[64] = {0, 4, 'M', 'Q', 'T', 'T', 4, flags, 1, 44 /* keep-alive 300 s */};
  char id[40];
  snprintf(id, sizeof id, "keep-%s-%d", kind, index);
  open_connection(&c->wire);
  append_packet(&c->wire, 0x10, body, 10 + put_text(body + 10, id));
}

static void subscribe(struct client *c, const char *filter, int qos) {
  uint8_t body[1024] = {0, 1};
  size_t n = 2 + put_text(body + 2, filter);
  body[n++] = qos;
  append_packet(&c->wire, 0x82, body, n);
}

static void flush_client(struct client *c) {
  if (waiting(&c->wire) && !c->wire.wants_write) flush(&c->wire);
}

static void on_message(struct client *c, uint8_t first, const uint8_t *body, size_t size) {
  size_t topic = 2 + (body[0] << 8 | body[1]), head = topic + (first & 6 ? 2 : 0);
  if (!received++) first_ns = now_ns();
  received_bytes += size;
  if (is_replay) return;
  uint32_t sequence;
  memcpy(&sequence, body + head, 4);
  if (sequence <= c->last_seen) repeated++; else lost += sequence - c->last_seen - 1, c->last_seen = sequence;
  append_packet(&c->wire, 0x40, body + topic, 2);
}

void on_packet(struct connection *wire, uint8_t first_byte, const uint8_t *body, size_t size) {
  struct client *c = (struct client *)wire;
  switch (first_byte >> 4) {
  case 2:
    if (size < 2 || body[1]) fail("CONNECT rejected with %d", size < 2 ? -1 : body[1]);
    connected++;
    break;
  case 3: on_message(c, first_byte, body, size); break;
  case 4: c->acked++; break;
  case 9:
    if (body[size - 1] > 2) fail("SUBSCRIBE rejected with %d", body[size - 1]);
    c->is_subscribed = true;
    break;
  }
}

static void expect_before(uint64_t deadline_ns, const char *what) {
  if (now_ns() > deadline_ns) fail("%s took too long", what);
}

static void make_sessions(struct client *clients) {
  uint64_t deadline = now_ns() + 120000000000u;
  for (int opened = 0, left = 0; left < option.clients;) {
    for (; opened < option.clients && opened - left < AT_ONCE_MAX; opened++) {
      char filter[40];
      clients[opened].topic = opened % option.topics;
      sprintf(filter, "keep/%d/t", clients[opened].topic);
      open_client(&clients[opened], "session", opened, 0);
      subscribe(&clients[opened], filter, 1);
    }
    turn(10), expect_before(deadline, "subscribing");
    for (; left < opened && clients[left].is_subscribed; left++) {
      append(&clients[left].wire, "\xe0\x00", 2), flush_client(&clients[left]);
      close_connection(&clients[left].wire);
    }
  }
}

static void publish(struct client *c, int topic, uint32_t sequence) {
  uint8_t body[40 + PAYLOAD_BYTES];
  char name[40];
  sprintf(name, "keep/%d/t", topic);
  size_t n = put_text(body, name);
  uint16_t id = c->sent++ % 65535 + 1;
  body[n++] = id >> 8, body[n++] = id;
  memset(body + n, 'x', PAYLOAD_BYTES), memcpy(body + n, &sequence, 4);
  append_packet(&c->wire, 0x32, body, n + PAYLOAD_BYTES);
}

static double publish_all(void) {
  struct client *publishers = calloc(option.publishers, sizeof *publishers);
  uint64_t begun = now_ns(), deadline = begun + 300000000000u, total = (uint64_t)option.topics * option.messages;
  for (int i = 0; i < option.publishers; i++) open_client(&publishers[i], "publisher", i, CLEAN), publishers[i].topic = i;
  for (uint64_t acked = 0; acked < total;) {
    acked = 0;
    for (int i = 0; i < option.publishers; i++) {
      struct client *c = &publishers[i];
      /* Each topic has one publisher, so its sequence numbers follow the order of the log. */
      while (c->topic < option.topics && c->sent - c->acked < (uint64_t)option.window) {
        publish(c, c->topic, ++c->last_seen);
        if (c->last_seen == (uint32_t)option.messages) c->last_seen = 0, c->topic += option.publishers;
      }
      acked += c->acked;
      flush_client(c);
    }
    turn(1), expect_before(deadline, "publishing");
  }
  double seconds = (now_ns() - begun) / 1e9;
  for (int i = 0; i < option.publishers; i++) close_connection(&publishers[i].wire);
  return seconds;
}

static void resume(void) {
  struct client *clients = calloc(option.clients, sizeof *clients);
  make_sessions(clients);
  double published_s = publish_all();
  printf("{\"published_per_s\": %.0f}\n", option.topics * (double)option.messages / published_s), fflush(stdout);
  if (getchar() == EOF) return; /* the caller reads the state of the broker first */
  uint64_t begun = now_ns(), total = (uint64_t)option.clients * option.messages, deadline = begun + option.seconds * 1000000000ull;
  for (int i = 0; i < option.clients; i++) open_client(&clients[i], "session", i, 0);
  while (received - repeated < total && now_ns() < deadline) turn(10);
  double seconds = (now_ns() - begun) / 1e9;
  for (uint64_t quiet = now_ns() + 300000000; now_ns() < quiet;) turn(10); /* repeated messages would arrive now */
  uint64_t missing = total + repeated > received ? total + repeated - received : 0;
  printf("{\"seconds\": %.2f, \"delivered_per_s\": %.0f, \"lost\": %lu, \"dup\": %lu}\n", seconds, received / seconds,
         missing > lost ? missing : lost, repeated);
}

static void replay(void) {
  struct client reader = {0};
  uint64_t deadline = now_ns() + 30000000000u, wanted = option.clients;
  is_replay = true;
  open_client(&reader, "replay", getpid(), CLEAN);
  while (!connected) turn(10), expect_before(deadline, "connecting");
  uint64_t asked = now_ns(), heard = asked, seen = 0, now;
  subscribe(&reader, option.filter, 0), flush_client(&reader);
  while (received < wanted && (now = now_ns()) - heard < SILENCE_NS) {
    turn(10);
    if (received > seen) seen = received, heard = now_ns();
  }
  double seconds = (heard - asked) / 1e9;
  if (!received) fail("no message received for %s", option.filter);
  printf("{\"received\": %lu, \"delivered_per_s\": %.0f, \"first_ms\": %.3f, \"megabytes_per_s\": %.1f}\n", received,
         received / seconds, (first_ns - asked) / 1e6, received_bytes / seconds / 1e6);
}

int main(int count, char **words) {
  const char *command = count > 1 ? words[1] : "";
  optind = 2;
  for (int letter; (letter = getopt(count, words, "p:n:g:k:P:w:d:f:")) != -1;) switch (letter) {
    case 'p': endpoint.port = atoi(optarg); break;
    case 'n': option.clients = atoi(optarg); break;
    case 'g': option.topics = atoi(optarg); break;
    case 'k': option.messages = atoi(optarg); break;
    case 'P': option.publishers = atoi(optarg); break;
    case 'w': option.window = atoi(optarg); break;
    case 'd': option.seconds = atoi(optarg); break;
    case 'f': option.filter = optarg; break;
    default: return 1;
  }
  start_transport();
  if (!strcmp(command, "resume")) resume();
  else if (!strcmp(command, "replay")) replay();
  else fail("the command must be resume or replay");
  return 0;
}
