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

/* The address and transport of all connections. Set before the first one is opened. */
extern struct endpoint { const char *host; int port; bool tls, websocket; } endpoint;

/* Unsent bytes above which a publisher should pause. */
enum { BACKLOG_BYTES = 1 << 18 };

/* Ends the program with a line on standard error. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
uint64_t now_ns(void);

/* Raises the limit of open files and creates the event loop; call once, first. */
void start_transport(void);

/* TCP connects asynchronously; TLS and WebSocket handshakes block. */
void open_connection(struct connection *c);

/* Removes it from the event loop and closes it without DISCONNECT; unsent bytes are dropped. Not for TLS. */
void close_connection(struct connection *c);

/* Append bytes to send; flush sends as much as the socket accepts, and the rest later. */
void append(struct connection *c, const void *data, size_t size);
void append_packet(struct connection *c, uint8_t first_byte, const void *body, size_t size);
void flush(struct connection *c);
size_t waiting(const struct connection *c);

/* MQTT's variable byte integer and string. Both return the number of bytes written. */
size_t put_length(uint8_t *at, size_t value);
size_t put_text(uint8_t *at, const char *text);

/* Wait up to this many milliseconds; send what can be sent, and pass on each received packet. */
void turn(int timeout_ms);

/* Wait until `turn` has something to do, up to this many nanoseconds. */
void await_events(uint64_t timeout_ns);

/* Defined by the user of this file. What it appends is flushed after the packets received together. */
void on_packet(struct connection *c, uint8_t first_byte, const uint8_t *body, size_t size);
#endif
