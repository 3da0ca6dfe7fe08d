package kube

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	sigsjson "sigs.k8s.io/json"
)

// ErrUndecodable is wrapped by the error of a successful request whose response cannot be decoded.
var ErrUndecodable = errors.New("the object cannot be decoded")

// An Undecodable stands for an object that cannot be decoded. Of the metadata it has what
// identifies the object.
type Undecodable struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Err error
}

// DeepCopyObject implements runtime.Object.
func (u *Undecodable) DeepCopyObject() runtime.Object { c := *u; return &c }

// newUndecodable returns the Undecodable of an object in JSON, or in a message of protobuf.
func newUndecodable(raw []byte, isMessage bool, err error) *Undecodable {
	identity := identityIn
	if isMessage {
		identity = identityInMessage
	}
	return &Undecodable{ObjectMeta: identity(raw), Err: err}
}

// identityIn returns the metadata that identifies an object in JSON, as far as it can be decoded.
func identityIn(raw []byte) metav1.ObjectMeta {
	var object struct {
		Metadata struct {
			Namespace, Name, ResourceVersion string
			UID                              types.UID
		}
	}
	_ = json.Unmarshal(raw, &object) // it omits what is not a text
	m := object.Metadata
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
}

// A tolerant serializer decodes an object that cannot be decoded as an Undecodable, unless the
// caller has given the object to decode into. A watch goes on then.
type tolerant struct{ runtime.NegotiatedSerializer }

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (t tolerant) DecoderToVersion(d runtime.Decoder, v runtime.GroupVersioner) runtime.Decoder {
	return tolerantDecoder{t.NegotiatedSerializer.DecoderToVersion(d, v)}
}

type tolerantDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d tolerantDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object,
	*schema.GroupVersionKind, error) {
	object, kind, err := d.Decoder.Decode(data, defaults, into)
	if err == nil || into != nil {
		return object, kind, err
	}
	if raw, isProtobuf := bytes.CutPrefix(data, protobufPrefix); isProtobuf {
		var u runtime.Unknown
		if u.Unmarshal(raw) == nil {
			return newUndecodable(u.Raw, true, err), kind, nil
		}
	}
	return newUndecodable(data, false, err), kind, nil
}

// eachItem decodes the objects of a list that an API server sends, and calls do with one after the
// other, so that few of them are in memory at a time. A list may have hundreds of objects with more
// than a megabyte each. An object that cannot be decoded is an *Undecodable. newObject returns an
// empty object.
func eachItem(body io.Reader, newObject func() runtime.Object, do func(runtime.Object) error) (metav1.ListMeta, error) {
	r := bufio.NewReader(body)
	if start, _ := r.Peek(len(protobufPrefix)); !bytes.Equal(start, protobufPrefix) {
		return eachInJSON(r, func(raw []byte) error {
			object := newObject()
			if err := sigsjson.UnmarshalCaseSensitivePreserveInts(raw, object); err != nil {
				object = newUndecodable(raw, false, err)
			}
			return do(object)
		})
	}
	_, _ = r.Discard(len(protobufPrefix))
	return eachInProtobuf(r, func(raw []byte) error {
		object := newObject()
		m, isMessage := object.(interface{ Unmarshal([]byte) error })
		if !isMessage {
			return fmt.Errorf("%T cannot be decoded from protobuf", object)
		}
		if err := m.Unmarshal(raw); err != nil {
			object = newUndecodable(raw, true, err)
		}
		return do(object)
	})
}

// eachInJSON calls do with each element of a list in JSON. do must not keep it.
func eachInJSON(r io.Reader, do func(raw []byte) error) (meta metav1.ListMeta, _ error) {
	d, hasItems := json.NewDecoder(r), false
	start, err := d.Token()
	if err == nil && start != json.Delim('{') {
		err = fmt.Errorf("the response begins with %v; want a list", start)
	}
	for err == nil && d.More() {
		var key json.Token
		var raw json.RawMessage
		switch key, err = d.Token(); {
		case err != nil:
		case key == "metadata":
			err = d.Decode(&meta)
		case key != "items":
			err = d.Decode(&raw)
		default:
			if start, err = d.Token(); start == nil { // null, an empty list
				hasItems = true
				continue
			}
			hasItems = start == json.Delim('[')
			for err == nil && d.More() {
				if err = d.Decode(&raw); err == nil {
					err = do(raw)
				}
			}
			if err == nil && hasItems {
				_, err = d.Token() // ]
			}
		}
	}
	if err == nil {
		_, err = d.Token() // }
	}
	if err == nil && !hasItems {
		err = errNoList
	}
	return meta, err
}

var errNoList = errors.New("the response has no items; want a list")

// protobufPrefix begins an object in protobuf. Then comes the message runtime.Unknown, whose field
// 2 is the message of the object. Field 1 of an object or a list is the metadata, and field 2 of a
// list an element.
var protobufPrefix = []byte("k8s\x00")

// eachInProtobuf calls do with each element of a list in protobuf. do must not keep it.
func eachInProtobuf(r *bufio.Reader, do func(raw []byte) error) (meta metav1.ListMeta, _ error) {
	isList := false
	err := eachField(r, func(field uint64, list *io.LimitedReader) error {
		if field != 2 {
			return nil
		}
		isList = true
		return eachField(bufio.NewReader(list), func(field uint64, value *io.LimitedReader) error {
			data, err := io.ReadAll(value)
			switch {
			case err != nil || value.N > 0:
				return cmp.Or(err, io.ErrUnexpectedEOF)
			case field == 1:
				return meta.Unmarshal(data)
			}
			return do(data)
		})
	})
	if err == nil && !isList {
		err = errNoList
	}
	return meta, err
}

// eachField calls do with each field of a protobuf message, of which all have a length.
func eachField(r *bufio.Reader, do func(field uint64, value *io.LimitedReader) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if err == io.EOF {
			return nil
		}
		length, lengthErr := binary.ReadUvarint(r)
		if err = cmp.Or(err, lengthErr); err != nil || tag&7 != 2 {
			return fmt.Errorf("tag %d of a protobuf message: %w", tag, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		value := &io.LimitedReader{R: r, N: int64(min(length, 1<<40))}
		if err := do(tag>>3, value); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, value); err != nil || value.N > 0 {
			return cmp.Or(err, io.ErrUnexpectedEOF)
		}
	}
}

// identityInMessage does the same for an object in protobuf.
func identityInMessage(raw []byte) metav1.ObjectMeta {
	var m metav1.ObjectMeta
	_ = eachField(bufio.NewReader(bytes.NewReader(raw)), func(_ uint64, value *io.LimitedReader) error {
		data, _ := io.ReadAll(value)
		_ = m.Unmarshal(data)
		return io.EOF // the other fields are not needed
	})
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
}
