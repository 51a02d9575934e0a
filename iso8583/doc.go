// Package iso8583 reads and writes ISO 8583 messages of the 1987 edition as bytes: elements in ASCII, a binary or hexadecimal bitmap.
//
// It promises that whatever bytes a peer sends give a message or an error, never a panic, with memory bounded by the frame's limit; that
// a decoded message accounts for every byte it was read from; that Peek and Decode agree; that values come back as they stood on the
// wire, zeros and spaces included; and that neither a Message nor an error prints a card number, track, PIN block or ICC data.
//
// It never guesses: a length, amount, message type or element that breaks the profile's table is refused by name. It never pads, strips,
// retries or talks to the network; sockets belong to gateway/link. The field codec underneath is github.com/moov-io/iso8583, which nothing
// outside this package touches.
package iso8583
