//! Arrays of more than 32 values in a frozen session; serde has no form for them. The
//! values follow each other without a length.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, SeqAccess, Visitor},
    ser::SerializeTuple,
};

pub fn serialize<S: Serializer, T: Serialize, const N: usize>(
    array: &[T; N],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut tuple = serializer.serialize_tuple(N)?;
    for value in array {
        tuple.serialize_element(value)?;
    }
    tuple.end()
}

pub fn deserialize<'de, D, T, const N: usize>(deserializer: D) -> Result<[T; N], D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Copy + Default,
{
    deserializer.deserialize_tuple(N, ArrayVisitor(PhantomData))
}

struct ArrayVisitor<T, const N: usize>(PhantomData<T>);

impl<'de, T, const N: usize> Visitor<'de> for ArrayVisitor<T, N>
where
    T: Deserialize<'de> + Copy + Default,
{
    type Value = [T; N];

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{N} values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<[T; N], A::Error> {
        let mut array = [T::default(); N];
        for (n, slot) in array.iter_mut().enumerate() {
            let value = values.next_element()?;
            *slot = value.ok_or_else(|| A::Error::invalid_length(n, &self))?;
        }
        Ok(array)
    }
}
