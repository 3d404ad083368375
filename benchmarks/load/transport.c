#define _GNU_SOURCE
#include "transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The calls of libssl, declared here so that its development package is not needed. */
void *TLS_client_method(void), *SSL_CTX_new(void *), *SSL_new(void *);
long SSL_ctrl(void *, int, long, void *);
int SSL_set_fd(void *, int), SSL_connect(void *), SSL_get_error(void *, int);
int SSL_read(void *, void *, int), SSL_write(void *, const void *, int);
enum { SSL_CTRL_MODE = 33, SSL_PARTIAL_WRITE_MOVING_BUFFER = 3, SSL_WANT_READ = 2, SSL_WANT_WRITE = 3 };

enum { RECEIVE_BYTES = 1 << 18 };

struct endpoint endpoint = {"127.0.0.1", 1883, false, false};
static int epoll;
static void *tls_context;

void fail(const char *format, ...) {
  va_list words;
  va_start(words, format);
  fprintf(stderr, "%s: ", program_invocation_short_name);
  vfprintf(stderr, format, words);
  fputc('\n', stderr);
  exit(1);
}

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

void start_transport(void) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  epoll = epoll_create1(0);
  if (endpoint.tls) tls_context = SSL_CTX_new(TLS_client_method());
}

/* -- sending --------------------------------------------------------------------------------------------------------- */

static void grow(struct buffer *b, const void *data, size_t size) {
  if (b->size + size > b->capacity) {
    b->capacity = (b->size + size) * 2;
    if (!(b->data = realloc(b->data, b->capacity))) fail("out of memory");
  }
  memcpy(b->data + b->size, data, size);
  b->size += size;
}

void append(struct connection *c, const void *data, size_t size) { grow(&c->out, data, size); }

size_t put_length(uint8_t *at, size_t value) {
  size_t n = 0;
  do at[n] = (value & 127) | (value > 127 ? 128 : 0), n++; while (value >>= 7);
  return n;
}

size_t put_text(uint8_t *at, const char *text) {
  size_t n = strlen(text);
  at[0] = n >> 8, at[1] = n;
  memcpy(at + 2, text, n);
  return n + 2;
}

void append_packet(struct connection *c, uint8_t first_byte, const void *body, size_t size) {
  uint8_t head[5] = {first_byte};
  append(c, head, 1 + put_length(head + 1, size));
  append(c, body, size);
}

/* -1: would block */
static ssize_t write_some(struct connection *c, const uint8_t *data, size_t size) {
  ssize_t n = c->tls ? SSL_write(c->tls, data, size) : send(c->fd, data, size, MSG_NOSIGNAL);
  if (n > 0) return n;
  if (c->tls ? SSL_get_error(c->tls, n) == SSL_WANT_WRITE : errno == EAGAIN) return -1;
  fail("the broker closed a connection");
}

static ssize_t read_some(struct connection *c, uint8_t *data, size_t size) {
  ssize_t n = c->tls ? SSL_read(c->tls, data, size) : recv(c->fd, data, size, 0);
  if (n > 0) return n;
  if (c->tls ? SSL_get_error(c->tls, n) == SSL_WANT_READ : n < 0 && errno == EAGAIN) return -1;
  fail("the broker closed a connection");
}

/* A mask of zeros leaves the bytes unchanged, and costs the broker as much as any other. */
static void append_frame(struct buffer *frames, const uint8_t *data, size_t size) {
  uint8_t head[14] = {0x82};
  int lengths = size < 126 ? 0 : size < 65536 ? 2 : 8;
  head[1] = 128 | (lengths == 0 ? size : lengths == 2 ? 126 : 127);
  for (int i = 0; i < lengths; i++) head[2 + i] = size >> 8 * (lengths - 1 - i);
  grow(frames, head, 2 + lengths + 4);
  grow(frames, data, size);
}

static struct buffer *outgoing(struct connection *c) { return endpoint.websocket ? &c->frames : &c->out; }

size_t waiting(const struct connection *c) { return c->out.size + c->frames.size - c->sent; }

void flush(struct connection *c) {
  struct buffer *b = outgoing(c);
  if (endpoint.websocket && c->out.size) append_frame(b, c->out.data, c->out.size), c->out.size = 0;
  bool blocked = false;
  while (c->sent < b->size && !blocked) {
    ssize_t n = write_some(c, b->data + c->sent, b->size - c->sent);
    if (n < 0) blocked = true; else c->sent += n;
  }
  if (c->sent == b->size || c->sent > BACKLOG_BYTES) {
    memmove(b->data, b->data + c->sent, b->size - c->sent);
    b->size -= c->sent, c->sent = 0;
  }
  if (blocked != c->wants_write) {
    struct epoll_event e = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
    c->wants_write = blocked;
  }
}

/* -- opening --------------------------------------------------------------------------------------------------------- */

static void open_websocket(struct connection *c) {
  char text[2048];
  int n = snprintf(text, sizeof text,
                   "GET /mqtt HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                   "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
                   endpoint.host, endpoint.port);
  write_some(c, (uint8_t *)text, n);
  for (n = 0; n < 4 || memcmp(text + n - 4, "\r\n\r\n", 4); n++)
    if (n == sizeof text - 1 || read_some(c, (uint8_t *)text + n, 1) != 1) fail("no answer to the WebSocket request");
  if (strncmp(text, "HTTP/1.1 101", 12)) fail("WebSocket rejected: %.40s", text);
}

void open_connection(struct connection *c) {
  bool at_once = endpoint.tls || endpoint.websocket;
  if ((c->fd = socket(AF_INET, SOCK_STREAM | (at_once ? 0 : SOCK_NONBLOCK), 0)) < 0) fail("socket: %s", strerror(errno));
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(endpoint.port)};
  inet_pton(AF_INET, endpoint.host, &to.sin_addr);
  if (connect(c->fd, (void *)&to, sizeof to) && errno != EINPROGRESS) fail("connect: %s", strerror(errno));
  if (endpoint.tls) {
    c->tls = SSL_new(tls_context);
    SSL_ctrl(c->tls, SSL_CTRL_MODE, SSL_PARTIAL_WRITE_MOVING_BUFFER, NULL);
    SSL_set_fd(c->tls, c->fd);
    if (SSL_connect(c->tls) != 1) fail("TLS handshake failed");
  }
  if (endpoint.websocket) open_websocket(c);
  if (at_once) fcntl(c->fd, F_SETFL, O_NONBLOCK);
  struct epoll_event e = {.events = EPOLLIN | (at_once ? 0 : EPOLLOUT), .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
  c->wants_write = !at_once;
}

void close_connection(struct connection *c) {
  close(c->fd);
  free(c->out.data), free(c->rest.data), free(c->frames.data);
  *c = (struct connection){.fd = -1};
}

/* -- receiving ------------------------------------------------------------------------------------------------------- */

/* Removes WebSocket headers from received bytes, in place; returns the number of bytes left. */
static size_t unframe(struct connection *c, uint8_t *data, size_t size) {
  size_t in = 0, out = 0;
  while (in < size) {
    if (c->ws_left) {
      size_t n = c->ws_left < size - in ? c->ws_left : size - in;
      memmove(data + out, data + in, n);
      in += n, out += n, c->ws_left -= n;
      continue;
    }
    c->ws_head[c->ws_head_size++] = data[in++];
    if (c->ws_head_size < 2) continue;
    int kind = c->ws_head[1] & 127, lengths = kind == 126 ? 2 : kind == 127 ? 8 : 0;
    if (c->ws_head_size < 2u + lengths) continue;
    if ((c->ws_head[0] & 15) > 2) fail("unexpected WebSocket frame %d", c->ws_head[0] & 15);
    for (int i = 0; i < lengths; i++) c->ws_left = c->ws_left << 8 | c->ws_head[2 + i];
    if (!lengths) c->ws_left = kind;
    c->ws_head_size = 0;
  }
  return out;
}

/* All connections receive into one buffer; the rest of an incomplete packet is kept in the connection's own buffer. */
static void on_readable(struct connection *c) {
  static uint8_t *data;
  static size_t capacity;
  ssize_t got;
  do {
    size_t kept = c->rest.size;
    if (capacity < kept + RECEIVE_BYTES && !(data = realloc(data, capacity = kept + RECEIVE_BYTES))) fail("out of memory");
    if ((got = read_some(c, data + kept, RECEIVE_BYTES)) < 0) break;
    memcpy(data, c->rest.data ? c->rest.data : data, kept);
    size_t size = kept + (endpoint.websocket ? unframe(c, data + kept, got) : (size_t)got), at = 0;
    while (size - at >= 2) {
      size_t length = 0, head = 1;
      bool whole = false;
      while (at + head < size && head < 5 && !whole) {
        length |= (size_t)(data[at + head] & 127) << 7 * (head - 1);
        whole = !(data[at + head++] & 128);
      }
      if (!whole || size - at - head < length) break;
      on_packet(c, data[at], data + at + head, length);
      at += head + length;
    }
    c->rest.size = 0;
    if (at < size) grow(&c->rest, data + at, size - at);
  } while (got == RECEIVE_BYTES || c->tls);
  if (c->out.size && !c->wants_write) flush(c);
}

void await_events(uint64_t timeout_ns) {
  struct timespec rest = {timeout_ns / 1000000000u, timeout_ns % 1000000000u};
  ppoll(&(struct pollfd){epoll, POLLIN, 0}, 1, &rest, NULL);
}

void turn(int timeout_ms) {
  struct epoll_event events[512];
  int n = epoll_wait(epoll, events, 512, timeout_ms);
  for (int i = 0; i < n; i++) {
    struct connection *c = events[i].data.ptr;
    if (c->fd < 0) continue; /* closed in the meantime */
    if (events[i].events & EPOLLOUT) flush(c);
    if (events[i].events & ~EPOLLOUT) on_readable(c);
  }
}
