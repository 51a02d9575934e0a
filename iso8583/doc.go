// Package iso8583 reads and writes ISO 8583 messages as bytes: the editions of 1987 and 1993 in ASCII, packed decimal or EBCDIC, with a binary
// or hexadecimal bitmap, each as a built-in table over which a profile lays what its scheme has otherwise.
//
// It promises that whatever bytes a peer sends give a message or an error, never a panic, with memory bounded by the frame's limit; that
// a decoded message accounts for every byte it was read from; that Peek and Decode agree, since both are one walk; that values come back as
// they stood on the wire, zeros and spaces included, as text whatever the coding; and that neither a Message nor an error prints a card
// number, track, PIN block or ICC data.
//
// It never guesses: a length, amount, filler, message type or element that breaks the profile's table is refused by name. It never pads,
// strips, retries or talks to the network; sockets belong to gateway/link. Tests hold every dialect against github.com/moov-io/iso8583, which
// reads what is written here and writes what is read.
package iso8583
