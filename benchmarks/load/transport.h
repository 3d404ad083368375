/* Connections to a broker, all served by one thread: TCP, TLS or WebSocket below, MQTT packets above. */
#ifndef FLOOD_TRANSPORT_H
#define FLOOD_TRANSPORT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer { uint8_t *data; size_t size, capacity; };

struct connection {
  int fd;
  bool wants_write;
  void *tls;
  struct buffer out;  /* MQTT, not yet sent or framed */
  struct buffer rest; /* an incomplete packet received */
  struct buffer frames; /* WebSocket: `out` framed, not yet sent */
  size_t sent;          /* of `out`, or of `frames` */
  uint8_t ws_head[10];
  unsigned ws_head_size;
  uint64_t ws_left;
};

/* Where all connections go, and how. Set before the first is opened. */
extern struct endpoint { const char *host; int port; bool tls, websocket; } endpoint;

/* Bytes that wait to be sent beyond which a publisher should hold back. */
enum { BACKLOG_BYTES = 1 << 18 };

/* Ends the program with a line on standard error. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
uint64_t now_ns(void);

/* Raises the limit of open files and makes the event loop; call once, first. */
void start_transport(void);

/* TCP connects while others work; TLS and WebSocket shake hands here and now. */
void open_connection(struct connection *c);

/* Takes it out of the event loop and closes it, without a word; what waits to be sent is dropped. Not for TLS. */
void close_connection(struct connection *c);

/* Add to what is to be sent; flush sends as much as the socket takes, and the rest when it takes more. */
void append(struct connection *c, const void *data, size_t size);
void append_packet(struct connection *c, uint8_t first_byte, const void *body, size_t size);
void flush(struct connection *c);
size_t waiting(const struct connection *c);

/* MQTT's variable length and text. Both give the number of bytes written. */
size_t put_length(uint8_t *at, size_t value);
size_t put_text(uint8_t *at, const char *text);

/* Wait for at most so long; send what can be sent, hand over each packet received. */
void turn(int timeout_ms);

/* Defined by the user of this file. What it appends is flushed after the packets that came together. */
void on_packet(struct connection *c, uint8_t first_byte, const uint8_t *body, size_t size);
#endif
