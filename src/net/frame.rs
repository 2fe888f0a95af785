//! Cuts a stream into frames: a 4-byte big-endian size, then that many bytes. Pieces may end anywhere.

use bytes::{Buf, Bytes, BytesMut};

use crate::model::limit::{FRAME_RESERVE_BYTES, FRAME_RESERVE_BYTES_MIN, REQUEST_BYTES_MAX};

/// Where a connection stands in its stream. Between frames it holds no memory of its own.
#[derive(Debug)]
pub(crate) enum Assembly {
    /// `have` bytes of the size field are here.
    Size { bytes: [u8; 4], have: u8 },
    /// Part of a frame of `size` bytes is here; `bytes` is its own buffer.
    Body { size: usize, bytes: BytesMut },
}

/// A size field that no Kafka client sends: the stream cannot be followed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadSize(pub i32);

impl Assembly {
    pub(crate) fn new() -> Assembly {
        Assembly::Size {
            bytes: [0; 4],
            have: 0,
        }
    }

    /// The frame's own buffer and how many bytes it still takes, when a frame has begun; the buffer has room for at least one
    /// of them. `whole` tells whether the rest of the frame fits, so that bytes behind it may follow in the same receive.
    pub(super) fn own(&mut self) -> Option<(&mut BytesMut, usize, bool)> {
        let Assembly::Body { size, bytes } = self else {
            return None;
        };
        let missing = *size - bytes.len();
        if bytes.len() == bytes.capacity() {
            // Grown only when all that was reserved before is really full.
            bytes.reserve(room_for(bytes.len(), *size) - bytes.len());
        }
        let whole = bytes.capacity() - bytes.len() >= missing;
        Some((bytes, missing, whole))
    }

    /// After bytes went to the frame's own buffer: the frame, if that completed it.
    pub(super) fn take_if_whole(&mut self) -> Option<Bytes> {
        match self {
            Assembly::Body { size, bytes } if bytes.len() == *size => {
                let frame = std::mem::take(bytes).freeze();
                *self = Assembly::new();
                Some(frame)
            }
            _ => None,
        }
    }

    /// Takes all of `stream`: whole frames are cut out of it without a copy, the begun one at its end goes to a buffer of its own.
    pub(crate) fn feed(
        &mut self,
        stream: &mut BytesMut,
        mut frame: impl FnMut(Bytes),
    ) -> Result<(), BadSize> {
        while !stream.is_empty() {
            match self {
                Assembly::Size { bytes, have } => {
                    let at = usize::from(*have);
                    let take = (4 - at).min(stream.len());
                    bytes[at..at + take].copy_from_slice(&stream[..take]);
                    *have += take as u8;
                    stream.advance(take);
                    if *have < 4 {
                        break;
                    }
                    let claimed = i32::from_be_bytes(*bytes);
                    let size = match u32::try_from(claimed) {
                        Ok(size) if size <= REQUEST_BYTES_MAX => size as usize,
                        _ => {
                            stream.clear();
                            return Err(BadSize(claimed));
                        }
                    };
                    if stream.len() >= size {
                        *self = Assembly::new();
                        frame(stream.split_to(size).freeze());
                    } else {
                        let room = match stream.len() {
                            0 => 0,
                            have => room_for(have, size),
                        };
                        let mut own = BytesMut::with_capacity(room);
                        own.extend_from_slice(stream);
                        stream.clear();
                        *self = Assembly::Body { size, bytes: own };
                    }
                }
                Assembly::Body { size, bytes } => {
                    let take = (*size - bytes.len()).min(stream.len());
                    bytes.extend_from_slice(&stream[..take]);
                    stream.advance(take);
                    if let Some(whole) = self.take_if_whole() {
                        frame(whole);
                    }
                }
            }
        }
        Ok(())
    }
}

/// How much memory a frame of `size` bytes has when `have` of them are here: the size is only a claim, so sixteen times what came, and
/// fourfold for large ones. The first piece of a real client's large frame is large enough for all of it.
fn room_for(have: usize, size: usize) -> usize {
    let room = (16 * have).clamp(FRAME_RESERVE_BYTES_MIN, FRAME_RESERVE_BYTES);
    room.max(4 * have).min(size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for frame in frames {
            stream.extend_from_slice(&(frame.len() as u32).to_be_bytes());
            stream.extend_from_slice(frame);
        }
        stream
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting_of_the_stream(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            cuts in prop::collection::vec(1usize..64, 1..200),
        ) {
            let stream = framed(&frames);
            let mut assembly = Assembly::new();
            let mut got = Vec::new();
            let mut at = 0;
            for cut in cuts.iter().cycle() {
                if at == stream.len() {
                    break;
                }
                let end = (at + cut).min(stream.len());
                let mut piece = BytesMut::from(&stream[at..end]);
                assembly.feed(&mut piece, |frame| got.push(frame.to_vec())).unwrap();
                prop_assert!(piece.is_empty());
                at = end;
            }
            prop_assert_eq!(got, frames);
            let between = matches!(assembly, Assembly::Size { have: 0, .. });
            prop_assert!(between);
        }
    }

    #[test]
    fn sizes_above_the_bound_and_below_zero_are_refused() {
        for claimed in [REQUEST_BYTES_MAX as i32 + 1, i32::MAX, -1, i32::MIN] {
            let mut assembly = Assembly::new();
            let mut stream = BytesMut::from(&claimed.to_be_bytes()[..]);
            stream.extend_from_slice(b"rest");
            assert_eq!(
                assembly.feed(&mut stream, |_| panic!("no frame")),
                Err(BadSize(claimed))
            );
        }
    }

    #[test]
    fn a_claimed_size_reserves_no_memory_before_bytes_come() {
        let mut assembly = Assembly::new();
        let mut stream = BytesMut::from(&(REQUEST_BYTES_MAX).to_be_bytes()[..]);
        assembly.feed(&mut stream, |_| {}).unwrap();
        match &assembly {
            Assembly::Body { bytes, .. } => assert_eq!(bytes.capacity(), 0),
            other => panic!("{other:?}"),
        }
        let mut first = BytesMut::from(&b"x"[..]);
        assembly.feed(&mut first, |_| {}).unwrap();
        let (own, missing, whole) = assembly.own().unwrap();
        assert!(own.capacity() <= FRAME_RESERVE_BYTES && !whole);
        assert_eq!(missing, REQUEST_BYTES_MAX as usize - 1);
    }
}
