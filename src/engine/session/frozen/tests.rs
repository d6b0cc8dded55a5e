//! Records the layout of frozen sessions, so that no change of it goes unnoticed.

use std::fmt::Write;

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor},
};

use super::{HEAD_VERSION, OwnedHead, OwnedWindow, WINDOW_VERSION};

/// The recorded layouts. If one has changed, raise its version in `frozen.rs` and record
/// the new value here.
const HEAD_LAYOUT: (u8, &str) = (3, "915a096a836e0b31");
const WINDOW_LAYOUT: (u8, &str) = (8, "d1f49674cf9abff3");

#[test]
fn a_layout_changes_only_with_its_version() {
    let (head, window) = (layout::<OwnedHead>(), layout::<OwnedWindow>());
    assert_eq!(
        [(HEAD_VERSION, &*head), (WINDOW_VERSION, &*window)],
        [HEAD_LAYOUT, WINDOW_LAYOUT]
    );
}

/// A hash of the names and types of all fields. Each pass takes one variant of every
/// enum, until all have been taken.
fn layout<'de, T: Deserialize<'de>>() -> String {
    let mut recorder = Recorder::default();
    while recorder.pass <= recorder.last_variant {
        T::deserialize(&mut recorder).unwrap();
        recorder.pass += 1;
    }
    blake3::hash(recorder.layout.as_bytes()).to_hex()[..16].to_owned()
}

/// Gives every type a value, and records what it asks for.
#[derive(Default)]
struct Recorder {
    layout: String,
    pass: usize,
    last_variant: usize,
}

impl Recorder {
    fn record(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.layout, "{what}").unwrap();
    }
}

macro_rules! record_values {
    ($($method:ident $visit:ident $value:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            self.record(format_args!(stringify!($method)));
            visitor.$visit($value)
        })*
    };
}

type Error = de::value::Error;

impl<'de> Deserializer<'de> for &mut Recorder {
    type Error = Error;

    record_values! {
        deserialize_bool visit_bool false;
        deserialize_i8 visit_i8 0;
        deserialize_i16 visit_i16 0;
        deserialize_i32 visit_i32 0;
        deserialize_i64 visit_i64 0;
        deserialize_i128 visit_i128 0;
        deserialize_u8 visit_u8 0;
        deserialize_u16 visit_u16 0;
        deserialize_u32 visit_u32 0;
        deserialize_u64 visit_u64 0;
        deserialize_u128 visit_u128 0;
        deserialize_f32 visit_f32 0.0;
        deserialize_f64 visit_f64 0.0;
        deserialize_char visit_char 'x';
        deserialize_str visit_borrowed_str "";
        deserialize_string visit_borrowed_str "";
        deserialize_bytes visit_borrowed_bytes b"";
        deserialize_byte_buf visit_borrowed_bytes b"";
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("a frozen session needs known types"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(format_args!("option"));
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(format_args!("{name}"));
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(format_args!("{name}"));
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(format_args!("list"));
        visitor.visit_seq(Elements(self, 1))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.record(format_args!("{len} values"));
        visitor.visit_seq(Elements(self, len))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(format_args!("{name}: {len} values"));
        visitor.visit_seq(Elements(self, len))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(format_args!("map"));
        visitor.visit_map(Elements(self, 1))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(format_args!("{name}: {fields:?}"));
        visitor.visit_seq(Elements(self, fields.len()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(format_args!("{name}: one of {variants:?}"));
        self.last_variant = self.last_variant.max(variants.len() - 1);
        visitor.visit_enum(Variant(self, variants.len()))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// This many elements are left.
struct Elements<'a>(&'a mut Recorder, usize);

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.1.checked_sub(1) else {
            return Ok(None);
        };
        self.1 = left;
        seed.deserialize(&mut *self.0).map(Some)
    }
}

impl<'de> MapAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.0)
    }
}

/// An enum with this many variants.
struct Variant<'a>(&'a mut Recorder, usize);

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let variant = (self.0.pass % self.1) as u32;
        let index = de::value::U32Deserializer::<Error>::new(variant);
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.0.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.record(format_args!("{fields:?}"));
        visitor.visit_seq(Elements(self.0, fields.len()))
    }
}
